"""``python -m horocache.compat``, and what the packages in it say of what there is not."""

import subprocess
import sys

import pytest

from horocache.launch.environment import python_path


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)


def of_compat(*arguments, **options):
    return python("-m", "horocache.compat", *arguments, **options)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("horovod.mxnet", "MXNet, whose development has ended"),
        ("horovod.spark", "horocache does not start jobs through Spark"),
        ("horovod.ray", "does not start jobs through Ray"),
        ("horovod.torch.elastic", "no elastic mode yet"),
        ("horovod.common.elastic", "no elastic mode yet"),
    ],
)
def test_what_is_missing_is_an_import_error_that_says_why(module, says):
    done = of_compat("-c", f"import {module}")
    assert done.returncode == 1
    assert "ImportError: " in done.stderr and says in done.stderr


def test_the_basics_of_all_bindings_are_an_object_too():
    program = (
        "from horovod.common.basics import HorovodBasics\n"
        "basics = HorovodBasics(__name__, 'mpi_lib')\n"
        "basics.init()\n"
        "print(basics.rank(), basics.size(), basics.Sum, basics.nccl_built(), basics.is_initialized())\n"
        "basics.shutdown()\n"
    )
    done = of_compat("-c", program)
    assert done.stdout.split() == ["0", "1", "1", "0", "True"], done.stderr


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


def test_install_goes_first_once_and_refuses_a_horovod_that_is_loaded(tmp_path):
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


def test_the_path_keeps_what_was_in_it():
    assert python_path("x", None) == "x"
    assert python_path("x", "a:b") == "x:a:b"
    assert python_path("x", "a:x") == "x:a"
