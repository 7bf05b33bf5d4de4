"""Makes stores."""

from __future__ import annotations

from horocache.collectives.arguments import set_id
from horocache.collectives.dynamic_process_sets import add_process_set
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.dag import Engine
from horocache.errors import InvalidArgumentError
from horocache.kvstore.order import Order, order_of
from horocache.kvstore.served import ServedStore, Servers
from horocache.kvstore.store import KVStore


def create(
    name: str = "local",
    *,
    lanes: int = 2,
    threads: int = 1,
    engine: Engine | None = None,
    blocking: bool = True,
    servers: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> KVStore:
    """Make a store. All workers make the same stores, in the same order.

    Args:
        name: the type.

            - ``negotiated``: the ranks agree on what to run, whatever order they use; ready keys of the highest
              priority come first.
            - ``depcha``: the sums run one by one, in the order of the calls, while all else runs beside them.
            - ``concom``: the same in several lanes.
            - ``funnel``: a call waits for its sum.
            - ``dist_sync``: servers make the sums, and keep the values.
            - ``local``: one worker.

            MXNet's names ``device``, ``horovod``, ``dist_device_sync``, and the paper's ``conCum``, stand for these. In
            ``depcha``, ``concom`` and ``funnel`` all workers must use the keys in the same order; an error names the
            keys if they do not.
        lanes: of ``concom``: how many sums run at a time.
        threads: of the store's engine, for copies and updates.
        engine: runs the operations beside others of the program; it needs a queue ``cpu``, and for types with lanes a
            queue ``comm`` with a thread for each. None: the store has one.
        blocking: calls return when the tensors of the caller that they write have their values; False: at once, and
            :meth:`KVStore.wait` waits.
        servers: of ``dist_sync``: this number of ranks, the last ones, serve instead of being workers; there, the call
            serves until all workers have closed the store, and raises SystemExit, as MXNet's servers do. None: every
            worker is a server, too.
        process_set: the workers, or with ``servers`` workers and servers.

    Raises:
        InvalidArgumentError: the type is unknown, the engine has too few threads for the lanes, or ``servers`` is out
            of range.
        NotInitializedError: the type needs ``init()`` first.
    """
    order = order_of(name, lanes)
    number = 0
    if order.across:
        stores, workers = context.current().stores, set_id(process_set)
        number = stores[workers]
        stores[workers] += 1
    owns = engine is None
    if engine is None:
        queues = {"cpu": threads, **({"comm": order.lanes} if order.lanes else {})}
        engine = Engine(queues, name=f"kv{number}")
    else:
        _check(engine, order)
    if not order.serves:
        return KVStore(order, number, engine, owns, blocking, process_set)
    return ServedStore(order, number, engine, owns, blocking, _servers(number, servers, process_set))


def _servers(number: int, count: int | None, job: ProcessSet) -> Servers:
    """Start this process's server, if it is one; a process that is nothing else does not return."""
    ranks = job.ranks
    if count is None:
        servers = Servers(job, ranks, job, number)
        servers.serve(number)
        return servers
    if not 1 <= count < len(ranks):
        raise InvalidArgumentError(f"servers must be from 1 to {len(ranks) - 1} of {len(ranks)} ranks; it is {count}.")
    if job is not global_process_set:
        raise InvalidArgumentError(
            "servers of their own need the set of all ranks, because the job makes a set of workers."
        )
    known = [each for each in context.current().process_sets.values() if each.ranks == ranks[:-count]]
    workers = known[0] if known else add_process_set(ProcessSet(ranks[:-count]))
    servers = Servers(workers, ranks[-count:], job, number)
    if context.rank() not in servers.ranks:
        return servers
    servers.serve(number)
    servers.close(None)
    raise SystemExit(0)


def _check(engine: Engine, order: Order) -> None:
    threads = engine.threads
    if "cpu" not in threads:
        raise InvalidArgumentError(f"a store needs an engine with a queue 'cpu'; {engine.name!r} has {threads}.")
    if not engine.naive and threads.get("comm", 0) < order.lanes:
        raise InvalidArgumentError(
            f"a store of type {order.type!r} with {order.lanes} lanes needs an engine with as many threads of a queue "
            f"'comm', because each lane waits on one; {engine.name!r} has {threads}."
        )
