"""The check of packages finds imports that go up and circular imports, and nothing else."""


def test_an_import_that_goes_down_is_allowed(lint):
    text = "from horocache.core import context\nimport horocache.errors\nimport numpy\n"
    assert lint("check_packages", {"horocache/collectives/barrier.py": text, "horocache/core/context.py": ""}) == []


def test_an_import_that_goes_up_is_found_with_file_and_line_also_inside_a_function(lint):
    text = "def f():\n    from horocache.collectives import barrier\n"
    sources = {"horocache/core/context.py": text, "horocache/collectives/barrier.py": ""}
    [finding] = lint("check_packages", sources)
    assert finding == (
        "horocache/core/context.py:2: horocache.core.context must not import horocache.collectives.barrier, "
        "which is above it in ORDER"
    )


def test_an_import_for_type_checkers_only_is_ignored(lint):
    text = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from horocache.collectives import barrier\n"
    assert lint("check_packages", {"horocache/core/context.py": text, "horocache/collectives/barrier.py": ""}) == []


def test_a_circle_within_a_package_is_found_once(lint):
    sources = {
        "horocache/core/a.py": "from horocache.core import b\n",
        "horocache/core/b.py": "from horocache.core.c import x\n",
        "horocache/core/c.py": "def f():\n    import horocache.core.a\n",
    }
    [finding] = lint("check_packages", sources)
    assert finding.endswith(
        "horocache/core/a.py:1: modules import each other: "
        "horocache.core.a -> horocache.core.b -> horocache.core.c -> horocache.core.a"
    )


def test_a_binding_has_the_name_under_which_it_is_installed(lint):
    sources = {
        "framework_bindings/torch/ops.py": "from horocache.torch.optimizer.reducer import x\n",
        "framework_bindings/torch/optimizer/reducer.py": "",
    }
    [finding] = lint("check_packages", sources)
    assert "horocache.torch.ops must not import horocache.torch.optimizer.reducer" in finding


def test_a_relative_import_is_resolved(lint):
    sources = {
        "framework_bindings/torch/ops.py": "from .optimizer.reducer import x\nfrom . import adapter\n",
        "framework_bindings/torch/adapter.py": "",
        "framework_bindings/torch/optimizer/reducer.py": "from ..adapter import y\nfrom .bucket import z\n",
        "framework_bindings/torch/optimizer/bucket.py": "from . import reducer\n",
    }
    first, second = lint("check_packages", sources)
    assert first.startswith("framework_bindings/torch/ops.py:1: horocache.torch.ops must not import")
    assert "horocache.torch.optimizer.bucket -> horocache.torch.optimizer.reducer" in second


def test_a_package_that_is_not_in_the_order_is_found(lint):
    [finding] = lint("check_packages", {"horocache/misc/helpers.py": ""})
    assert "belongs to no package of ORDER" in finding
