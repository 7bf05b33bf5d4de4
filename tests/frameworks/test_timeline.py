"""The timeline files of jobs with several processes."""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from pathlib import Path

import horocache.torch as hvd
import numpy as np
import pytest
import torch

import horocache as hc
from horocache.observe.trace import key_of, load_all, merge, message_key_of
from horocache.testing import Fault, run_ranks

from .bindings import both_bindings

NAME_TO_ESCAPE = 'a"b\\c\n\x00é'


@both_bindings
def test_the_timeline_links_sends_to_receives(binding, tmp_path):
    def exchange_messages():
        hc.init()
        right, left = (hc.rank() + 1) % 3, (hc.rank() + 2) % 3
        # Small messages are sent at once; a large one waits for its receive.
        for turn, count in enumerate((10, 100_000, 10)):
            sent = hc.isend(np.ones(count, np.float32), right, tag=turn)
            hc.recv(np.empty(count, np.float32), left, tag=turn)
            hc.synchronize(sent)
        hc.shutdown()

    file = tmp_path / "t.json"
    run_ranks(exchange_messages, 3, knobs={"binding": binding, "timeline": str(file)})
    traces = load_all([file])
    ends = Counter()
    for trace in traces:
        spans = [span for span in trace.spans if span.category == "message"]
        assert Counter(span.name for span in spans) == {"SEND": 3, "RECV": 3}
        right, left = (trace.rank + 1) % 3, (trace.rank + 2) % 3
        assert {f"send to rank {right}", f"recv from rank {left}"} <= set(trace.rows.values())
        assert sorted(span.args["bytes"] for span in spans) == [40] * 4 + [400_000] * 2
        assert {span.args["tag"] for span in spans} == {0, 1, 2}
        ends.update(message_key_of(trace.rank, span) for span in spans)
    assert len(ends) == 9 and set(ends.values()) == {2}
    arrows = [event for event in merge(traces)["traceEvents"] if event.get("cat") == "flow"]
    assert Counter(event["ph"] for event in arrows) == {"s": 9, "f": 9}


@both_bindings
def test_every_rank_writes_its_operations(binding, tmp_path):
    def run_operations():
        pair = hc.ProcessSet([0, 2])
        hc.init(process_sets=[pair])
        for _ in range(5):
            handles = [hc.allreduce_async(np.ones(1000), name=f"t{i}") for i in range(3)]
            for handle in handles:
                hc.synchronize(handle)
        hc.allgather(np.ones((hc.rank(), 2)), name=NAME_TO_ESCAPE)
        if pair.included():
            hc.broadcast(np.ones(3), 2, name="t0", process_set=pair)
        hc.barrier()
        hc.shutdown()

    file = tmp_path / "t.json"
    began_us = time.time() * 1e6
    knobs = {"binding": binding, "timeline": str(file), "timeline_mark_cycles": "1"}
    run_ranks(run_operations, 3, knobs=knobs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "t.rank1.json", "t.rank2.json"]
    traces = load_all([file])
    assert [trace.rank for trace in traces] == [0, 1, 2]
    for trace in traces:
        (epoch_us,) = [
            event["args"]["start_time_since_epoch_in_micros"] for event in trace.events if event["name"] == "horocache"
        ]
        assert began_us < epoch_us + min(span.begin for span in trace.spans) < time.time() * 1e6
        count = Counter(span.name for span in trace.spans)
        assert count["ALLREDUCE"] == count["NEGOTIATE_ALLREDUCE"] == count["SHM_ALLREDUCE"] == 15
        assert count["SHM_ALLGATHER"] == 1 and count["BARRIER"] == 1
        assert count["QUEUE"] == count["ALLREDUCE"] + (3 if trace.rank != 1 else 2)
        assert f"allgather.{NAME_TO_ESCAPE}" in trace.rows.values()
        assert ("set 1: broadcast.t0" in trace.rows.values()) == (trace.rank != 1)
        assert any(event["name"] == "CYCLE_START" for event in trace.events)
        for span in trace.spans:
            assert span.begin <= span.end
    # All ranks of a set have the same operations in the same order.
    keys = [[key_of(span) for span in trace.spans if key_of(span) is not None] for trace in traces]
    in_world = [{key for key in of_rank if key[0] == 0} for of_rank in keys]
    assert in_world[0] == in_world[1] == in_world[2] and len(in_world[0]) == 17


@both_bindings
def test_timelines_start_and_stop_while_the_job_runs(binding, tmp_path):
    def start_and_stop_timelines(folder):
        hc.init()
        for name in ("first.json", "second.json"):
            hc.start_timeline(folder / name, mark_cycles=True)
            with pytest.raises(ValueError, match="is on already"):
                hc.start_timeline(folder / "other.json")
            hc.allreduce(np.ones(2), name=name)
            hc.stop_timeline()
            hc.stop_timeline()
            hc.allreduce(np.ones(2), name="unseen")
        with pytest.raises(hc.InvalidArgumentError, match=r"cannot open the folder of .*No such file or directory"):
            hc.start_timeline(folder / "nothing" / "here.json")
        (folder / "folder").mkdir(exist_ok=True)
        hc.barrier()
        hc.start_timeline(folder / "folder")
        hc.allreduce(np.ones(2), name="inside")
        hc.stop_timeline()
        hc.start_timeline(str(folder / "third.json"))
        hc.allreduce(np.ones(2), name="last")
        hc.shutdown()
        with pytest.raises(hc.NotInitializedError):
            hc.start_timeline(folder / "other.json")

    run_ranks(start_and_stop_timelines, 2, args=(tmp_path,), knobs={"binding": binding, "timeline": "DYNAMIC"})
    written = {"first": "first.json", "second": "second.json", "third": "last", "folder/timeline": "inside"}
    for name, tensor in written.items():
        for trace in load_all([tmp_path / f"{name}.json"]):
            assert set(trace.rows.values()) == {"rounds", f"allreduce.{tensor}"}
    assert len(list(tmp_path.iterdir())) == 6 + 1
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["timeline.json", "timeline.rank1.json"]


def test_a_killed_rank_leaves_complete_files(tmp_path):
    def reduce_until_rank_1_dies():
        hc.init()
        with pytest.raises(hc.PeerLostError):
            for step in range(400):
                hc.allreduce(np.ones(10), name=f"t{step}")
                time.sleep(0.001)

    file = tmp_path / "t.json"
    faults = [Fault("start", "kill", 1, 350)]
    run_ranks(reduce_until_rank_1_dies, 2, knobs={"timeline": str(file)}, faults=faults, check=False)
    survivor, killed = load_all([file])
    assert len(killed.spans) > 0
    assert any("signal 9" in str(span.args.get("error", "")) for span in survivor.spans)


def meet_at_barriers():
    hc.init()
    for _ in range(3):
        hc.barrier()


# Root may write to any folder. No process can create files in /proc, which replaces a folder without permission.
@pytest.mark.parametrize("folder", ["nothing", "/proc"])
def test_an_unwritable_file_is_logged_once_and_the_job_goes_on(folder, tmp_path):
    outcomes = run_ranks(meet_at_barriers, 2, knobs={"timeline": str(tmp_path / folder / "t.json")}, check=False)
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        assert outcome.output.count("there will be no timeline: cannot ") == 1


def test_a_full_device_is_logged_once_and_the_job_goes_on():
    for outcome in run_ranks(meet_at_barriers, 2, knobs={"timeline": "/dev/full"}, check=False):
        assert outcome.ok, outcome.describe()
        assert outcome.output.count("there will be no timeline: cannot write '/dev/full': No space left") == 1


def test_a_device_takes_the_timelines_of_all_ranks():
    run_ranks(meet_at_barriers, 2, knobs={"timeline": "/dev/null"})
    assert not list(Path("/dev").glob("null?*"))


def test_a_full_disk_is_logged_once_and_the_file_is_complete(tmp_path):
    def fill_the_disk(file):
        hc.init()
        hc.start_timeline(file)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        for step in range(300):
            hc.allreduce(np.ones(10), name=f"t{step}")
            time.sleep(0.005)

    file = tmp_path / "t.json"
    (outcome,) = run_ranks(fill_the_disk, 1, args=(file,), check=False)
    assert outcome.ok, outcome.describe()
    assert outcome.output.count("the timeline ends here: cannot write") == 1, outcome.output
    assert len(json.loads(file.read_text())) > 10


def test_gradient_groups_record_the_wait_for_their_last_gradient(tmp_path):
    def train_with_groups():
        hvd.init()
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), num_groups=2
        )
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
        hvd.shutdown()

    file = tmp_path / "t.json"
    run_ranks(train_with_groups, 2, knobs={"timeline": str(file)})
    for trace in load_all([file]):
        waits = [span for span in trace.spans if span.name == "WAIT_FOR_OTHER_TENSOR_DATA"]
        assert len(waits) == 6  # of two groups, in three steps
        assert all(span.end > span.begin for span in waits)
