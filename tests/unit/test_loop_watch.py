import subprocess
import sys

SCRIPT = """
import gc, threading, time

from switchyard.services.engine.monitoring.loop_watch import frame_of


class Odd:
    def __init__(self):
        self.itself = self  # garbage that only a collection finds

    def __del__(self):
        time.sleep(0.0001)  # lets another thread run


def look():
    while not done.is_set():
        Odd()
        assert frame_of(main) is not None


main, done = threading.get_ident(), threading.Event()
looking = threading.Thread(target=look, daemon=True)
gc.set_threshold(1)
looking.start()
for _ in range(300):
    other = threading.Thread(target=int)
    other.start()
    other.join()
done.set()
looking.join()
assert gc.isenabled()
print("went on")
"""


def test_whoever_looks_at_a_thread_does_not_stop_those_that_start_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
