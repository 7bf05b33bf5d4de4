"""An exception that ends a process is reported at once: before its threads end and its exit handlers run."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The thread and the exit handler wait for the report, and print "late" if it does not come.
PROGRAM = """
import atexit, sys, threading
from horocache.core import uncaught_exceptions as endings

reports = []
reported = threading.Event()
def report(why):
    reports.append(why)
    reported.set()
def wait(waiter):
    print(waiter, "in time" if reported.wait(20) else "late")
endings.watch(report)
if {expected!r}:
    threading.Thread(target=wait, args=("thread",)).start()
    atexit.register(wait, "handler")
atexit.register(lambda: print("reports", reports))
{ending}
"""


def run(ending, expected=""):
    program = PROGRAM.format(ending=ending, expected=expected)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("ending", "why", "code", "shown"),
    [
        ("raise KeyError('k')", "it raised KeyError: 'k'", 1, "KeyError: 'k'"),
        ("raise KeyboardInterrupt", "it raised KeyboardInterrupt: ", None, "KeyboardInterrupt"),
        ("sys.excepthook = lambda *_: print('own')\nraise KeyError('k')", "it raised KeyError: 'k'", 1, "own"),
        (
            "before = sys.excepthook\ndef own(*what):\n    before(*what)\n    print('own hook')\nsys.excepthook = own\n"
            "raise KeyError('k')",
            "it raised KeyError: 'k'",
            1,
            "own hook",
        ),
        ("def f():\n    sys.exit(7)\nf()", "it called sys.exit(7)", 7, ""),
        ("sys.exit('no data')", "it called sys.exit('no data')", 1, "no data"),
        ("exit(7)", "it called sys.exit(7)", 7, ""),
        ("quit('no data')", "it called sys.exit('no data')", 1, "no data"),
    ],
)
def test_an_uncaught_exception_is_reported_before_threads_and_exit_handlers_end(ending, why, code, shown):
    done = run(ending, why)
    assert done.returncode == code or code is None, done
    assert f"reports {[why]!r}" in done.stdout.replace(f", {why!r}", ""), done  # later checks may report it again
    assert done.stdout.count("in time") == 2 and "late" not in done.stdout, done
    assert shown in done.stdout + done.stderr, done


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit()", 0),
        ("exit()", 0),
        ("try:\n    sys.exit(7)\nexcept SystemExit as error:\n    assert error.code == 7 and error.args == (7,)", 0),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())", 0),
        ("class T(threading.Thread):\n    def run(self):\n        sys.exit(7)\nT().start()", 0),
        ("threading.Thread(target=lambda: sys.excepthook(KeyError, KeyError('k'), None)).start()", 0),
    ],
)
def test_other_ends_of_a_process_are_not_reported(ending, code):
    done = run(ending)
    assert (done.returncode, done.stdout) == (code, "reports []\n"), done


def test_sys_exit_raises_an_ordinary_system_exit():
    program = """
import pickle, sys
from horocache.core import uncaught_exceptions as endings
endings.watch(print)
for arguments, code in (((), None), ((None,), None), ((3,), 3), (((1, 2),), (1, 2)), ((SystemExit(4),), 4)):
    try:
        sys.exit(*arguments)
    except SystemExit as error:
        assert error.code == code, (error.code, code)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is SystemExit and copy.code == code
        assert repr(error) == repr(copy) and type(error).__name__ == "SystemExit"
        error.code = 9
        assert error.code == 9
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
