"""RabbitMQ out of another Debian's root: no rights are needed to run it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers import TestBroker, root_of
from tests.support.foreign_root import BrokenRootError, link_erlang

ROOT = Path(__file__).parents[2]
NODE_SCRIPT = """
import sys
from pathlib import Path
from tests.support.foreign_root import ForeignRootNode
with ForeignRootNode(base_dir=Path(sys.argv[1]), root=Path(sys.argv[2])) as node:
    print(node.version, node.rabbitmqctl("list_vhosts").split())
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to be without")
def test_a_node_runs_where_neither_mounts_nor_chroot_are_allowed(
    broker43_quorum: TestBroker, tmp_path: Path
) -> None:
    root = root_of("4.3")
    setpriv = shutil.which("setpriv")
    if root is None or setpriv is None:
        pytest.skip("RabbitMQ 4.3 is this machine's own, or setpriv is missing")
    dropped_rights = "-sys_admin,-sys_chroot,-mknod"
    result = subprocess.run(
        [
            *(setpriv, f"--bounding-set={dropped_rights}", f"--inh-caps={dropped_rights}"),
            *(sys.executable, "-c", NODE_SCRIPT, str(tmp_path), str(root)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == [broker43_quorum.version, "['name',", "'/']"], result.stderr


def test_a_root_without_erlang_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenRootError, match="build it again"):
        link_erlang(tmp_path, tmp_path / "erlang")
