"""Packages and the CMake project; all other metadata is in pyproject.toml."""

from setuptools import find_packages, setup

BINDINGS = {
    f"horocache.{name}": f"framework_bindings/{name.replace('.', '/')}" for name in find_packages("framework_bindings")
}

setup(
    cmake_source_dir=".",
    packages=[*find_packages(include=["horocache", "horocache.*"]), *BINDINGS],
    package_dir=BINDINGS,
    package_data={"horocache": ["py.typed", "*.pyi"]},
    exclude_package_data={"": ["*.cc", "*.h", "*.def", "*.so", "_testing.pyi"]},
)
