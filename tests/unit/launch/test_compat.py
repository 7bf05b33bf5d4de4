"""``python -m horocache.compat``, and the errors of its packages for missing features."""

import subprocess
import sys

import pytest

from horocache.core.launcher_environment import python_path


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)


def of_compat(*arguments, **options):
    return python("-m", "horocache.compat", *arguments, **options)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("horovod.mxnet", "MXNet, whose development has ended"),
        ("horovod.spark", "horocache does not start jobs through Spark"),
        ("horovod.ray", "does not start jobs through Ray"),
        ("horovod.torch.elastic", "no elastic mode yet"),
        ("horovod.common.elastic", "no elastic mode yet"),
        ("horovod.tensorflow.data.compute_service", "tf.data.experimental.service.DispatchServer"),
    ],
)
def test_a_missing_feature_is_an_import_error_with_the_reason(module, words):
    done = of_compat("-c", f"import {module}")
    assert done.returncode == 1
    assert "ImportError: " in done.stderr and words in done.stderr


def test_the_basics_are_available_as_an_object():
    program = (
        "from horovod.common.basics import HorovodBasics\n"
        "basics = HorovodBasics(__name__, 'mpi_lib')\n"
        "basics.init()\n"
        "print(basics.rank(), basics.size(), basics.Sum, basics.nccl_built(), basics.is_initialized())\n"
        "basics.shutdown()\n"
    )
    done = of_compat("-c", program)
    assert done.stdout.split() == ["0", "1", "1", "0", "True"], done.stderr


def test_a_program_can_test_for_missing_features():
    program = (
        "import horovod.torch as hvd\n"
        "print(hasattr(hvd, 'elastic'))\n"
        "try:\n"
        "    hvd.elastic.run\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    from horovod.torch import elastic\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = of_compat("-c", program)
    answer, attribute, imported = done.stdout.splitlines()
    assert answer == "False", done.stderr
    assert "'horovod.torch' has no attribute 'elastic': horocache has no elastic mode yet" in attribute
    assert imported.startswith("horocache has no elastic mode yet")


HELPERS = """
import os
from horovod.common.util import env, gloo_built, is_version_greater_equal_than, mpi_built, split_list
from horovod.runner.common.util.env import get_env_rank_and_size, is_exportable

for ver, target, expected in (
    ("2.4.1", "2.4", True), ("2.4", "2.4.0", True), ("2.3", "2.10", False), ("2.4.0rc1", "2.4.0", False),
    ("2.13.0+cpu", "2.13", True), ("1.13.0a0", "1.12", True), ("2.4.0.post1", "2.4.0", True),
):
    assert is_version_greater_equal_than(ver, target) is expected, (ver, target)
try:
    is_version_greater_equal_than(2.4, "2.4")
except ValueError as error:
    assert "numbers with dots" in str(error)
else:
    raise AssertionError("a number was taken for a version")

os.environ.pop("A", None)
with env(A="1", B=None):
    assert os.environ["A"] == "1" and "B" not in os.environ
assert "A" not in os.environ
assert split_list([1, 2, 3], 2) == [[1, 2], [3]] and mpi_built() and not gloo_built(verbose=True)

assert get_env_rank_and_size() == (0, 1)
with env(HOROVOD_RANK="1", HOROVOD_SIZE="3"):
    assert get_env_rank_and_size() == (1, 3)
with env(PMI_SIZE="3"):
    try:
        get_env_rank_and_size()
    except RuntimeError as error:
        assert "PMI_SIZE is in the environment, and PMI_RANK is not" in str(error)
assert is_exportable("HOME") and not is_exportable("HOROVOD_SECRET_KEY")
"""


def test_helpers_do_what_horovods_do():
    done = of_compat("-c", HELPERS)
    assert done.returncode == 0, done.stderr


def test_scripts_modules_and_code_run_as_python_runs_them(tmp_path):
    (tmp_path / "helper.py").write_text("value = 7\n")
    text = (
        "import sys, helper, horovod\n"
        "print(__name__, sys.argv[1:], helper.value, __file__ if '__file__' in dir() else '')\n"
    )
    script = tmp_path / "script.py"
    script.write_text(text)
    done = of_compat(str(script), "-x", "y")
    assert done.stdout.split() == ["__main__", "['-x',", "'y']", "7", str(script)], done.stderr
    done = of_compat("-m", "script", "z", cwd=tmp_path)
    assert done.stdout.split() == ["__main__", "['z']", "7", str(script)], done.stderr
    done = of_compat("-c", text, "w", cwd=tmp_path)
    assert done.stdout.split() == ["__main__", "['w']", "7"], done.stderr
    assert of_compat("-c", "raise SystemExit(5)").returncode == 5


def test_mistakes_are_short():
    for arguments in ([], ["-m"], ["nowhere.py"]):
        done = of_compat(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert "usage: python -m horocache.compat" in of_compat().stdout
    assert of_compat("--help").returncode == 0


def test_install_prepends_the_path_once_and_refuses_a_loaded_horovod(tmp_path):
    program = (
        "import sys, os\n"
        "from horocache import compat\n"
        "compat.install(); compat.install()\n"
        "assert sys.path.count(compat.PACKAGES) == 1\n"
        "assert os.environ['PYTHONPATH'].split(os.pathsep)[0] == compat.PACKAGES\n"
        "import horovod\n"
        "compat.install()\n"
        "sys.modules['horovod'].__file__ = 'elsewhere/horovod/__init__.py'\n"
        "try:\n"
        "    compat.install()\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = python("-c", program)
    assert "imported already, from elsewhere/horovod/__init__.py" in done.stdout, done.stderr


def test_python_path_keeps_existing_entries():
    assert python_path("x", None) == "x"
    assert python_path("x", "a:b") == "x:a:b"
    assert python_path("x", "a:x") == "x:a"
