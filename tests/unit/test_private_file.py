"""Files that hold a password are nobody else's to read."""

from pathlib import Path

from switchyard.cli.system.rabbitmq_config import write_private


def mode(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


def test_a_private_file_and_its_directory_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "node" / "password"
    write_private(path, "secret")
    assert (mode(path), mode(path.parent), path.read_text()) == ("600", "700", "secret")


def test_a_file_that_was_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("older, and longer")
    path.chmod(0o644)
    write_private(path, "secret")
    assert (mode(path), path.read_text()) == ("600", "secret")
