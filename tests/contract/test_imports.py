"""Promises of `import horocache`: cheap imports, one version, public names, and no other top-level package."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import horocache
from horocache import _core, errors

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "tensorflow", "mpi4py", "jax", "sklearn", "matplotlib", "rich", "psutil")


def modules_after(statement: str, folder: Path) -> set[str]:
    """Top-level modules that are loaded after ``statement`` in a fresh interpreter started outside the source tree."""
    program = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", program]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.split())


@pytest.mark.parametrize("statement", ["import horocache", "import horocache; horocache.init; horocache.allreduce"])
def test_importing_loads_no_framework_and_no_mpi(statement, tmp_path):
    assert modules_after(statement, tmp_path).isdisjoint(HEAVY)


def test_the_placement_of_experts_loads_scipy_and_matplotlib_only_where_they_are_used(tmp_path):
    statement = "from horocache.moe.placement import Topology, Workload, shard; import numpy as np\n"
    statement += "shard(Topology(np.zeros((3, 3)), np.zeros((3, 3)), [1.0] * 3, [2] * 3), Workload(2, 0, 1, 0))"
    assert modules_after(statement, tmp_path).isdisjoint((*HEAVY, "scipy"))


def test_the_launcher_and_its_ranks_need_no_undeclared_package(tmp_path):
    absent = (
        "import sys; sys.modules.update(dict.fromkeys(['setuptools', 'distutils', 'packaging', 'pkg_resources']))\n"
    )
    rank = absent + "import horocache as hc; hc.init(); print(hc.allreduce([1.0], op=hc.Sum), flush=True)"
    launcher = absent + "from horocache.launch.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", launcher, "-np", "2", sys.executable, "-c", rank]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == ["[0] [2.]", "[1] [2.]"], done.stderr


def test_importing_starts_no_thread_and_reads_no_knob(tmp_path):
    program = "import horocache, threading, os; print(threading.active_count(), len(os.listdir('/proc/self/task')))"
    command = [sys.executable, "-c", program]
    environment = {"HOROCACHE_CYCLE_TIME": "not a number"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert done.stdout.split() == ["1", "1"]


def test_the_version_is_the_same_everywhere():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [declared] = re.findall(r'^version = "(.*)"$', text, re.MULTILINE)
    assert horocache.__version__ == importlib.metadata.version("horocache") == _core.__version__ == declared


def test_the_folder_of_the_bindings_is_not_importable(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        modules_after("import framework_bindings", tmp_path)


@pytest.mark.parametrize("name", ["", ".torch", ".tensorflow", ".keras", ".jax"])
def test_every_public_name_exists_and_has_a_docstring(name):
    if name:
        pytest.importorskip(name.removeprefix("."), reason="the framework is not installed")
    module = importlib.import_module(f"horocache{name}")
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
    public = {name: getattr(module, name) for name in module.__all__}
    assert not [name for name, thing in public.items() if callable(thing) and not thing.__doc__]


@pytest.mark.parametrize("name", ["", ".torch", ".tensorflow", ".keras", ".jax"])
def test_every_error_is_in_the_name_space_of_every_binding(name):
    if name:
        pytest.importorskip(name.removeprefix("."), reason="the framework is not installed")
    module = importlib.import_module(f"horocache{name}")
    defined = {
        each for each, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, BaseException)
    }
    assert defined == set(errors.__all__)
    assert {each: getattr(module, each) for each in defined} == {each: getattr(errors, each) for each in defined}
    assert defined <= set(module.__all__)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("horocache.lang.compiler", ["compile_for_msccl", "compile_program", "compile_traced"]),
        ("horocache.lang.verify", ["verify"]),
        ("horocache.lang.draw", ["describe"]),
        ("horocache.lang.cost", ["predict"]),
        ("horocache.lang.links", ["Link", "Machine"]),
        ("horocache.torch.optimizer", ["DistributedOptimizer"]),
        ("horocache.torch.moe", ["MoE", "MoELayer", "TopKGate", "checkpoint"]),
        ("horocache.moe.exchanges", ["exchange_names", "make_exchange"]),
        ("horocache.moe.placement", ["draw", "moves", "place_experts", "shard"]),
    ],
)
def test_modules_named_in_documents_have_the_named_functions(module, names):
    program = f"from {module} import {', '.join(names)}\nassert all(map(callable, [{', '.join(names)}]))"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_command_can_be_run_as_a_module():
    command = [sys.executable, "-m", "horocache.tools", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"horocache {horocache.__version__}\n"


def test_every_framework_with_a_binding_has_an_extra():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(
        r"^(\w+) = \[", text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0], re.M
    )
    bindings = {folder.name for folder in (ROOT / "framework_bindings").iterdir() if (folder / "__init__.py").exists()}
    others = {"autotune", "compression", "dag", "demo", "moe", "test", "bench", "tune", "lint"}
    assert set(extras) - others == bindings - {"keras"}, "Keras is on one of the others"
