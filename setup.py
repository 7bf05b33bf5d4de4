"""Packages and the CMake project; all other metadata is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    cmake_source_dir=".",
    packages=[*find_packages(include=["horocache", "horocache.*"]), "horocache.torch"],
    package_dir={"horocache.torch": "framework_bindings/torch"},
    package_data={"horocache": ["py.typed", "*.pyi"]},
    exclude_package_data={"": ["*.cc", "*.h", "*.def", "*.so"]},
)
