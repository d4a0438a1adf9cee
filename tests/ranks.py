"""Real processes for distributed tests, over gloo on loopback; started once, because importing torch takes seconds.

They are copies of one that has imported what takes longest. Tests that use them belong into conftest's `TOGETHER`, so
that only one worker starts them.
"""

import os
import sys
import tempfile
import traceback
from datetime import timedelta
from multiprocessing import forkserver, get_all_start_methods, get_context
from pathlib import Path
from unittest.mock import patch

HEAVY = ["on_ranks", "torch._dynamo", "adaterm.engines.cpu.loops"]
PATIENCE = 300  # seconds; the first fused step of a rule compiles


class Ranks:
    """Processes that together run a function, as the ranks of a new process group every time."""

    def __init__(self, size):
        forks = "forkserver" in get_all_start_methods()
        context = get_context("forkserver" if forks else "spawn")
        if forks:
            context.set_forkserver_preload(HEAVY)
            with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
                forkserver.ensure_running()
        self.pipes, self.processes, self.turns = [], [], context.Lock()
        for _ in range(size):
            mine, its = context.Pipe()
            process = context.Process(target=_serve, args=(its, self.turns), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)

    def run(self, world, function, *args):
        """What the function returns on each rank; what it raises on any rank is raised here."""
        with tempfile.TemporaryDirectory() as folder:
            for rank, pipe in enumerate(self.pipes[:world]):
                pipe.send((function, args, rank, world, str(Path(folder) / "store")))
            found = []
            for rank, pipe in enumerate(self.pipes[:world]):
                if not pipe.poll(PATIENCE):
                    self.stop()
                    raise TimeoutError(f"rank {rank} of {world} did not answer; {function.__name__}{args}")
                found.append(pipe.recv())
        problems = [f"on rank {rank}:\n{error}" for rank, (error, _) in enumerate(found) if error]
        if problems:
            raise AssertionError("\n".join(problems))
        return [result for _, result in found]

    def stop(self):
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe, turns):
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    old, ended = torch.__version__.startswith("2.7."), []
    if old:  # its HSDP asserts an event, of which a CPU's streams have none
        torch.cpu.Stream.record_event = lambda stream: torch.cpu.Event()
    from adaterm.engines.cpu import engine as cpu
    from adaterm.engines.gpu import engine as gpu

    gpu.interpreted = False  # the CPU's engine, where a test does not say otherwise
    if cpu.is_available():
        _compile_in_turn(turns)
    while True:
        try:
            function, args, rank, world, store = pipe.recv()
        except EOFError:
            return
        error, result = None, None
        try:
            dist.init_process_group(
                "gloo",
                store=dist.FileStore(store, world),
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=60),
            )
            result = function(*args)
        except BaseException:
            error = traceback.format_exc()
        finally:
            if dist.is_initialized():
                if old:  # a group that goes at once holds Python's lock, and may wait for a thread that waits for it
                    ended[:] = dist.distributed_c10d._world.pg_map
                dist.destroy_process_group()
        pipe.send((error, result))


def _compile_in_turn(turns):
    """Only the first rank compiles: the others wait for it, and find it done."""
    from adaterm.engines.cpu import loops

    compile_alone = loops._compile

    def compile_in_turn(*args, **scope):
        with turns:
            return compile_alone(*args, **scope)

    loops._compile = compile_in_turn
