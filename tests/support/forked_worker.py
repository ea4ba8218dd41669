"""What a worker of xdist is sent to run, in place of xdist's own `remote`: see forks.py."""

if __name__ == "__channelexec__":
    from tests.support import forks

    forks.work(channel)  # type: ignore[name-defined]  # noqa: F821 - execnet's
