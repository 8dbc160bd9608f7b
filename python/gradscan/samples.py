"""The samples that rlprobe captures beside the metrics: prompt, completion, reward and advantage of rollouts."""

from __future__ import annotations

from pathlib import Path

import polars as pl

__all__ = ["MOST", "read"]

MOST = 5
"""Samples that are given back; a step can have thousands."""

# The columns of rlprobe's SampleRecord that are shown, and what they are shown as.
_COLUMNS: dict[str, tuple[str, pl.DataType]] = {
    "step": ("step", pl.Int64()),
    "prompt_text": ("prompt", pl.String()),
    "completion_text": ("completion", pl.String()),
    "reward_total": ("reward", pl.Float64()),
    "advantage": ("advantage", pl.Float64()),
}


def read(run: Path, step: int, low: int, high: int) -> tuple[pl.DataFrame | None, str | None]:
    """The samples of a step, or where it has none those of the steps from `low` to `high`; outliers first.

    An outlier has a large absolute advantage, or without advantages a reward far from the median. Gives a frame with
    `step, reward, advantage, prompt, completion` (None where nothing was captured) and what went wrong, if anything:
    a shard that cannot be read is passed over.
    """
    shards, problem = [], None
    for shard in sorted([*run.glob("samples/*.parquet"), *run.glob("rank-*/samples/*.parquet")]):
        try:
            lazy = pl.scan_parquet(shard, glob=False)
            there = lazy.collect_schema()
            # A column of which every value is null has no type of its own: shards differ in that.
            chosen = [
                (pl.col(name) if name in there else pl.lit(None)).cast(dtype).alias(shown)
                for name, (shown, dtype) in _COLUMNS.items()
            ]
            shards.append(lazy.select(chosen).filter(pl.col("step").is_between(low, high)).collect())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            problem = f"{shard.name}: its samples could not be read ({str(error).splitlines()[0]})"
    samples = pl.concat(shards) if shards else pl.DataFrame()
    if len(samples) == 0:
        return None, problem
    here = samples.filter(pl.col("step") == step)
    samples = here if len(here) else samples
    far = pl.coalesce(pl.col("advantage").abs(), (pl.col("reward") - pl.col("reward").median()).abs())
    samples = samples.sort(far.fill_nan(float("inf")), descending=True, nulls_last=True, maintain_order=True)
    return samples.select("step", "reward", "advantage", "prompt", "completion").head(MOST), problem
