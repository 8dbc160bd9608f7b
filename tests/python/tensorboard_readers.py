"""TensorBoard's own readers: EventAccumulator, as scripts use it, and the data server behind the web page."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import tensorboard_data_server
from tensorboard import context
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.data.grpc_provider import GrpcDataProvider, make_stub
from tensorboard.util import tensor_util

Points = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]

EVERYTHING = {"scalars": 0, "tensors": 0, "histograms": 1, "images": 1, "audio": 1}


def accumulated(
    directory: Path, *, purge: bool = False, keep: Mapping[str, int] | None = None, only: Collection[str] | None = None
) -> dict[str, Points]:
    """The series of one directory by EventAccumulator: steps and values of each tag that holds numbers.

    `keep` is its `size_guidance` (default: everything), `purge` its `purge_orphaned_data`, which is on where scripts do
    not say otherwise; `only` picks tags. Tensors of more than one element are left out.
    """
    reader = EventAccumulator(str(directory), size_guidance=dict(keep or EVERYTHING), purge_orphaned_data=purge)
    reader.Reload()
    tags = reader.Tags()
    out = {}
    for tag in tags["scalars"]:
        if only is None or tag in only:
            events = reader.Scalars(tag)
            out[tag] = points([event.step for event in events], [event.value for event in events])
    for tag in tags["tensors"]:
        if only is None or tag in only:
            events = reader.Tensors(tag)
            arrays = [tensor_util.make_ndarray(event.tensor_proto) for event in events]
            if all(array.size == 1 and array.dtype.kind in "fiub" for array in arrays):
                out[tag] = points([event.step for event in events], [array.item() for array in arrays])
    return out


def points(steps: list[int], values: list[float]) -> Points:
    return np.array(steps, np.int64), np.array(values, np.float64)


@dataclass(frozen=True)
class _Filter:
    """A RunTagFilter; None is everything."""

    runs: Collection[str] | None
    tags: Collection[str] | None


class DataServer:
    """TensorBoard's Rust server on a folder, all of it loaded, every point kept; serves until it is closed.

    With `--reload once` the server says on stderr when its only load cycle is finished: there the constructor returns.
    Sampling is off, so that it keeps each point; checksums of payloads are off, as in TensorBoard.
    """

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        port = Path(self._scratch.name) / "port"
        command: list[str] = [
            str(tensorboard_data_server.server_binary()),
            *("--logdir", str(folder), "--port", "0", "--port-file", str(port)),
            *("--reload", "once", "--samples-per-plugin", "scalars=all", "-v"),
        ]
        environment = os.environ | ({"RAYON_NUM_THREADS": str(threads)} if threads else {})
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        said = []
        for line in self._process.stderr or ():
            said.append(line)
            if "Finished load cycle" in line:
                break
        else:
            self.close()
            raise RuntimeError(f"the data server ended before it had loaded: {''.join(said)}")
        self._address = f"localhost:{port.read_text().strip()}"

    def close(self) -> None:
        """Stops the server."""
        self._process.terminate()
        self._process.communicate()
        self._scratch.cleanup()

    def __enter__(self) -> DataServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _provider(self) -> Iterator[Any]:
        most = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(self._address, options=most) as channel:
            yield GrpcDataProvider(self._address, make_stub(channel))

    def runs(self) -> list[str]:
        """The names of all runs: directories relative to the folder."""
        with self._provider() as provider:
            return [run.run_name for run in provider.list_runs(context.RequestContext(), experiment_id="")]

    def series(self, run: str = ".", only: Collection[str] | None = None) -> dict[str, Points]:
        """The scalars of one run; `only` picks tags."""
        with self._provider() as provider:
            found = provider.read_scalars(
                context.RequestContext(),
                experiment_id="",
                plugin_name="scalars",
                downsample=2**31 - 1,
                run_tag_filter=_Filter({run}, only),
            )
        return {
            tag: points([datum.step for datum in data], [datum.value for datum in data])
            for tag, data in found.get(run, {}).items()
            if data
        }


def served(folder: Path) -> dict[str, Points]:
    """The scalars of the run that lies in `folder` itself, as the web page has them."""
    with DataServer(folder) as server:
        return server.series()
