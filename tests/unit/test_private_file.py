"""Files with a password can be read by their owner alone."""

from pathlib import Path

from switchyard.cli.system.rabbitmq_config import write_private


def permissions(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


def test_a_private_file_and_its_directory_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "node" / "password"
    write_private(path, "secret")
    assert (permissions(path), permissions(path.parent), path.read_text()) == (
        "600",
        "700",
        "secret",
    )


def test_an_existing_readable_file_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("older, and longer")
    path.chmod(0o644)
    write_private(path, "secret")
    assert (permissions(path), path.read_text()) == ("600", "secret")
