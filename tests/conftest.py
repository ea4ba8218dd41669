"""Real brokers and databases for the tests; nothing here stands in for one.

Each is started when the first test asks for it and shared by the whole run: a test has a vhost or
a database of its own on it. What is not installed skips the test, and fails it in CI.
"""

import gc
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import hypothesis
import pytest
import structlog

from switchyard.cli.system.rabbitmq_node import LocalNode
from tests.support import forked_worker, forks, time_limits
from tests.support.brokers import Profile, TestBroker, new_node
from tests.support.cluster import LocalCluster
from tests.support.costs import Costs
from tests.support.ledgers import make_ledger
from tests.support.loop_guard import MAX_LOADING_BLOCK, REPORTS, LoopGuard
from tests.support.missing import MissingError, skip_or_fail
from tests.support.postgres import PostgresServer
from tests.support.servers import Servers, own_postgres, shared_node, shared_postgres
from tests.support.vhosts import Vhosts

SERVERS = pytest.StashKey[Servers]()
COLLECTOR = pytest.StashKey[forks.Collector]()
BLOCKS = pytest.StashKey[Path]()
EXAMPLES = 50
"""Of each property: half of Hypothesis's own number."""
MARKS = {
    "broker310": {"broker310", "own_node"},
    "broker43": {"broker43_quorum", "cluster"},
    "postgres": {"postgres_url", "empty_postgres_url", "postgres_server", "pgvector_url"},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", action="store_true", help="list what costs processor time")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(forks.Hooks)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(time_limits)
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs())
    # As the product's own (services/common/logs.py), without the local variables of every frame: to
    # write those takes seconds, in which nothing else happens.
    *others, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*others, plain])
    hypothesis.settings.register_profile("tests", max_examples=EXAMPLES)
    hypothesis.settings.load_profile("tests")
    gc.disable()  # until the tests are collected: what that makes stays
    _guard_loops(config)
    if not hasattr(config, "workerinput"):  # the process that controls the run
        config.stash[SERVERS] = Servers()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Before the workers are started: they are forks of one process."""
    config.stash[COLLECTOR] = forks.Collector(config)
    config.stash[COLLECTOR].lend(specs)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_getremotemodule() -> ModuleType:
    return forked_worker


def pytest_forked(config: pytest.Config) -> None:
    _make_reports(config)


def _guard_loops(config: pytest.Config) -> None:
    """Find whatever of the product holds an event loop, here and in the processes of tests."""
    _make_reports(config)

    def report(text: str) -> None:
        with config.stash[BLOCKS].open("a") as file:
            file.write(f"in the tests' own process: {text}\n")

    LoopGuard(report, MAX_LOADING_BLOCK).install()


def _make_reports(config: pytest.Config) -> None:
    """An empty file for what this process, and those of its tests, have to say of their loops."""
    number, name = tempfile.mkstemp(prefix="switchyard-loops-")
    os.close(number)
    config.stash[BLOCKS] = Path(name)
    os.environ[REPORTS] = name


def pytest_unconfigure(config: pytest.Config) -> None:
    if collector := config.stash.get(COLLECTOR, None):
        collector.close()
    if servers := config.stash.get(SERVERS, None):
        servers.close()
    if reports := config.stash.get(BLOCKS, None):
        reports.unlink(missing_ok=True)


def pytest_collection_finish() -> None:
    """Python's collector looks at what tests make, and no more at all modules again and again: that
    took a sixth of a run's processor time."""
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a test by the fixtures it takes, so that `-m "not broker43"` leaves it out."""
    for item in items:
        if of_pair := _mark_of_pair(item):
            item.add_marker(of_pair)
        for mark, fixtures in MARKS.items():
            if fixtures & set(getattr(item, "fixturenames", ())):
                item.add_marker(mark)


def _mark_of_pair(item: pytest.Item) -> pytest.MarkDecorator | None:
    """Where a test runs on each broker and on each database: `make test` has 3.10 with SQLite and
    4.3 with PostgreSQL, so each of them once, and `make test-long` classic queues of 4.3. Neither
    knows of the other: the pairs that are left show nothing more."""
    chosen = getattr(item, "callspec", None)
    if chosen is None or not {"broker", "database_url"} <= chosen.params.keys():
        return None
    version, _ = chosen.params["broker"]
    if (version == "3.10") == (chosen.params["database_url"] == "sqlite"):
        return None
    return pytest.mark.pairs


@cache
def _nodes() -> dict[str, tuple[str, Vhosts]]:
    """By version, the full version of the run's node, and this process's vhosts on it."""
    return {}


def _vhosts_of(version: str) -> tuple[str, Vhosts]:
    if version not in _nodes():
        node, full_version = shared_node(version)
        _nodes()[version] = (full_version, Vhosts(node))
    return _nodes()[version]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that runs in a test's own process sets logs up for itself: where loggers are kept,
    later tests would read none."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def _loops_are_not_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing of the product holds an event loop: no heartbeat would be sent, no hot job start."""
    yield
    reports = request.config.stash[BLOCKS]
    if reports.stat().st_size:
        held = reports.read_text()
        os.truncate(reports, 0)
        pytest.fail(f"an event loop was held:\n{held}", pytrace=False)


def broker_of(version: str, profile: Profile) -> Iterator[TestBroker]:
    try:
        full_version, vhosts = _vhosts_of(version)
    except MissingError as error:
        skip_or_fail(str(error))
    broker = TestBroker(full_version, profile, None, vhosts.node, vhosts)
    yield broker
    broker.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """After each test: thousands of them take no broker, and what is kept for others idles on."""
    for _, vhosts in _nodes().values():
        vhosts.forget_idle()


@pytest.fixture(
    params=[
        pytest.param(("3.10", "classic"), id="3.10-classic", marks=pytest.mark.broker310),
        pytest.param(
            ("4.3", "classic"), id="4.3-classic", marks=[pytest.mark.broker43, pytest.mark.long]
        ),
        pytest.param(("4.3", "quorum"), id="4.3-quorum", marks=pytest.mark.broker43),
    ]
)
def broker(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    """Each version with each profile that it can run: an empty vhost, for this test alone.

    `make test` has either version and either profile once; the third pair is left to
    `make test-long`.
    """
    yield from broker_of(*request.param)


@pytest.fixture(
    params=[
        pytest.param(("3.10-small", "classic"), id="3.10", marks=pytest.mark.broker310),
        pytest.param(("4.3-small", "quorum"), id="4.3", marks=pytest.mark.broker43),
    ]
)
def small_broker(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    """Either version, whose `max_message_size` is SMALL_LIMIT of tests.support.brokers."""
    yield from broker_of(*request.param)


@pytest.fixture
def broker310() -> Iterator[TestBroker]:
    """RabbitMQ 3.10, classic profile, where one broker says enough."""
    yield from broker_of("3.10", "classic")


@pytest.fixture
def broker43_quorum() -> Iterator[TestBroker]:
    """RabbitMQ 4.3, quorum profile."""
    yield from broker_of("4.3", "quorum")


@pytest.fixture
def own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LocalNode]]:
    """Start RabbitMQ nodes (3.10 unless told) that this test may kill, restart, or fill.

    `own_node(version="3.10", **options)`: options as LocalNode takes them. Takes about 7 s each.
    """
    nodes: list[LocalNode] = []

    def start(version: str = "3.10", **options: Any) -> LocalNode:
        try:
            node = new_node(version, tmp_path_factory.mktemp("node"), **options)
        except MissingError as error:
            skip_or_fail(str(error))
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes of RabbitMQ 4.3 that this test may kill, freeze and cut off. Takes about 10 s."""
    try:
        nodes = LocalCluster(tmp_path / "cluster")
    except MissingError as error:
        skip_or_fail(str(error))
    with nodes:
        yield nodes


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An SQLite file that is not there yet."""
    return f"sqlite+aiosqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A PostgreSQL database with the ledger's tables, for this test alone."""
    yield from _database_on("postgres", PostgresServer.create_ledger)


@pytest.fixture
def empty_postgres_url() -> Iterator[str]:
    """A PostgreSQL database without any table."""
    yield from _database_on("postgres", PostgresServer.create_database)


@pytest.fixture
def pgvector_url() -> Iterator[str]:
    """The same on a server that has pgvector."""
    yield from _database_on("pgvector", PostgresServer.create_database)


def _database_on(name: str, create: Callable[[PostgresServer], str]) -> Iterator[str]:
    try:
        server = shared_postgres(name)
    except MissingError as error:
        skip_or_fail(str(error))
    url = create(server)
    yield url
    server.drop_later(url)


KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(params=KINDS)
async def database_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind with the ledger's tables, as SQLAlchemy takes it."""
    kind = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(kind)
    await make_ledger(url)
    return url


@pytest.fixture(params=KINDS)
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind without any table; of SQLite, a file that is not there yet."""
    kind = {"sqlite": "sqlite_url", "postgresql": "empty_postgres_url"}[request.param]
    return request.getfixturevalue(kind)


@pytest.fixture
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL server that this test may stop, start, pause and resume."""
    # Not in tmp_path, where PostgreSQL's own user may not go.
    with TemporaryDirectory(prefix="switchyard-postgres-") as directory:
        try:
            server = own_postgres(Path(directory))
        except MissingError as error:
            skip_or_fail(str(error))
        server.start()
        yield server
        server.stop()
