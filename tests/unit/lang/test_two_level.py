"""The programs of jobs whose mixtures of experts have hierarchical exchanges."""

from __future__ import annotations

import pytest

from horocache.errors import InvalidArgumentError
from horocache.lang import algorithms, compile_program, save_program, two_level
from horocache.lang.registry import install


def test_a_job_has_programs_for_small_sets_and_for_its_divisors():
    assert two_level.sizes(1) == two_level.sizes(3) == []
    assert two_level.sizes(24) == [4, 6, 8, 9, 10, 12, 14, 15, 16, 24]
    assert two_level.sizes(48)[-2:] == [24, 48]
    assert two_level.sizes(100)[-3:] == [20, 25, 50]


def test_each_size_has_a_program_for_each_division():
    made = two_level.library(9)
    assert [name for name, _ in made] == [
        f"moe.two_level.{shape}" for shape in ("2x2", "3x2", "2x3", "4x2", "2x4", "3x3")
    ]
    assert [program.ranks for _, program in made] == [4, 6, 6, 8, 8, 9]
    assert all(program.collective.name == "alltoall" for _, program in made)


def test_a_program_of_the_user_with_their_name_is_an_error(tmp_path):
    name = two_level.program_name(2, 2)
    path = tmp_path / f"{name}.program.json"
    save_program(compile_program(algorithms.direct_alltoall(4)), path)
    assert install(str(tmp_path), any_order=False)
    with pytest.raises(InvalidArgumentError, match=rf"{name}.*rename the file"):
        install(str(tmp_path), any_order=False, by_name=two_level.library(4))
