"""Writes the fixtures beside this file again: `python tests/data/make.py`, with the packages of the `test` group.

Everything is seeded. The bytes of Parquet files depend on the version of pyarrow, those of all other files do not.
README.md says what each fixture is for.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import makers  # noqa: E402
from makers import INF, NAN, Training, norms  # noqa: E402

Row = Mapping[str, Any]


def line(row: Row) -> str:
    """One line of JSON Lines."""
    return json.dumps(row) + "\n"


def rows(training: Training) -> list[dict[str, Any]]:
    """The rows of a training as a script's own logger writes them."""
    return [{"step": step, "loss": loss, "grad_norm": norm} for step, norm, loss in training.rows()]


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def hf_trainer(home: Path) -> None:
    """`trainer_state.json` as transformers saves it."""
    makers.trainer_state(home / "healthy", Training(norms(24, seed=1)))

    chain = {29: 17.5, 31: 24.0, 32: NAN, 33: NAN, 34: INF, 35: NAN}
    damaged = Training(norms(36, seed=2, put=chain), steps=list(range(10, 370, 10)))
    makers.trainer_state(home / "nan", damaged, checkpoints=(100, 200, 300), finished=False)

    # Resumed from checkpoint-20 after a first attempt that saved checkpoint-40 with NaN in it.
    first = Training(norms(40, seed=3, put={33: NAN, 34: NAN}))
    makers.trainer_state(home / "branches", first, checkpoints=(20, 40), finished=False)
    second = Training(norms(20, seed=3) + norms(30, seed=4))
    (home / "branches" / "trainer_state.json").write_text(makers.trainer_state_text(second))

    spikes = {k: 30.0 + k for k in (140, 171, 172, 199)}
    makers.trainer_state(home / "spikes", Training(norms(220, seed=5, put=spikes)))

    whole = makers.trainer_state_text(Training(norms(12, seed=6)))
    cut = home / "cut" / "trainer_state.json"
    cut.parent.mkdir()
    cut.write_text(whole[: whole.index('"step": 9')])
    makers.git_lfs_pointer(home / "lfs-pointer" / "trainer_state.json")

    broken = home / "broken-entry" / "trainer_state.json"
    broken.parent.mkdir()
    broken.write_text(whole.replace('"step": 4', '"step": 4 4 ]['))


# --- JSON Lines ------------------------------------------------------------------------------------------------------


def jsonl(home: Path) -> None:
    """Dialects of trainers, and what shells, editors and crashes make of lines."""
    makers.plain_jsonl(home / "plain.jsonl", Training(norms(40, seed=10, put={30: NAN, 31: -INF})))
    makers.plain_jsonl(home / "long.jsonl", Training(norms(400, seed=11, put={250: 44.0, 300: 51.0, 301: 60.5})))
    makers.ms_swift(home / "ms-swift" / "logging.jsonl", Training(norms(20, seed=12, put={15: NAN})))
    makers.verl(home / "verl.jsonl", Training(norms(24, seed=13, put={20: NAN, 21: NAN})))
    makers.llamafactory(home / "llamafactory" / "trainer_log.jsonl", Training(norms(24, seed=14)))
    makers.rllib(home / "rllib" / "result.json", Training(norms(14, seed=15)))
    makers.dreamer(home / "dreamer" / "metrics.jsonl", Training(norms(16, seed=16)))

    attempt = rows(Training(norms(30, seed=17, put={25: NAN, 26: NAN})))
    resumed = rows(Training(norms(30, seed=18), steps=list(range(21, 51))))
    restarted = rows(Training(norms(15, seed=19)))
    makers.jsonl(home / "resumed.jsonl", [*attempt, *resumed, *restarted])
    ahead, behind = (rows(Training(norms(24, seed=20 + rank, put={17 + rank: NAN}))) for rank in range(2))
    # The second rank writes three steps late.
    pairs = zip([*ahead, *[None] * 3], [*[None] * 3, *behind], strict=True)
    makers.jsonl(home / "interleaved.jsonl", [row for pair in pairs for row in pair if row is not None])
    makers.jsonl(home / "falling.jsonl", rows(Training(norms(20, seed=22, put={4: NAN})))[::-1])

    quoted = (
        {key: str(value) for key, value in row.items()} for row in rows(Training(norms(16, seed=23, put={9: NAN})))
    )
    makers.jsonl(home / "quoted.jsonl", quoted)
    sparse = rows(Training(norms(20, seed=24)))
    for k in (7, 8, 12):
        del sparse[k]["grad_norm"]
        sparse[k]["loss"] = None
    makers.jsonl(home / "missing.jsonl", sparse)

    lines = [line(row) for row in rows(Training(norms(16, seed=25, put={12: NAN})))]
    text = "".join(lines)
    bom = "\ufeff".encode()
    (home / "crlf-bom.jsonl").write_bytes(bom + text.replace("\n", "\r\n").encode())
    (home / "utf16.jsonl").write_bytes(b"\xff\xfe" + text.encode("utf-16-le"))
    (home / "nul-runs.jsonl").write_bytes(
        "".join([*lines[:5], "\0" * 300 + "\n", *lines[5:9], "\0" * 7, *lines[9:]]).encode()
    )
    (home / "one-line.jsonl").write_text(" ".join(each.strip() for each in lines) + "\n")
    (home / "unterminated.jsonl").write_text(text.rstrip("\n"))
    (home / "cut.jsonl").write_text(text[: text.rindex('"grad_norm"') + 15])
    (home / "broken-lines.jsonl").write_text(
        "".join([*lines[:4], "Traceback (most recent call last):\n", '{"step": 5, "lo\n', *lines[4:]])
    )


# --- delimited text --------------------------------------------------------------------------------------------------


def csv(home: Path) -> None:
    """Dialects of loggers, and what spreadsheets, shells and crashes make of a table."""
    makers.plain_csv(home / "plain.csv", Training(norms(40, seed=50, put={30: NAN, 31: -INF})))
    makers.plain_csv(home / "long.csv", Training(norms(400, seed=51, put={250: 44.0, 300: 51.0, 301: 60.5})))
    makers.pandas_csv(home / "pandas.csv", Training(norms(30, seed=52, put={24: NAN, 25: NAN, 26: NAN, 27: INF})))
    makers.lightning_csv(
        home / "lightning" / "metrics.csv", Training(norms(60, seed=53, put={50: NAN})), validate_every=15
    )
    losses = [1.0 + 1.0 / k for k in range(1, 16)] + [NAN]
    makers.keras_csv(home / "keras" / "training.csv", Training([0.0] * 16, losses=losses))
    makers.sb3_csv(home / "sb3" / "progress.csv", Training(norms(16, seed=54)))
    makers.deepspeed_csv(home / "deepspeed.csv", Training([0.0] * 20, losses=losses[:14] + losses[6:12]), restart_at=14)
    makers.dvclive_tsv(home / "dvclive.tsv", Training(norms(20, seed=55, put={17: INF})))
    chart = Training(norms(24, seed=56, put={20: NAN}), steps=list(range(250, 6250, 250)))
    makers.tensorboard_csv(home / "run-a_train-tag-train_grad_norm.csv", chart)
    makers.tensorboard_json(home / "grad_norm (1).json", chart)
    write(home / "quoted" / "grad_norm.json", [(home / "grad_norm (1).json").read_text().replace("NaN", '"NaN"')])
    write(home / "cut" / "grad_norm.json", [(home / "grad_norm (1).json").read_text()[:-9]])
    makers.wandb_chart_csv(home / "chart.csv", Training(norms(20, seed=57)))

    first, again = Training(norms(20, seed=58, put={15: NAN})), Training(norms(20, seed=59), steps=list(range(11, 31)))
    names = ["step", "loss", "grad_norm"]
    own = [[step, loss, norm] for step, norm, loss in first.rows()]
    resumed = [[step, loss, norm] for step, norm, loss in again.rows()]
    makers.table(home / "resumed.csv", names, [*own, names, *resumed])
    makers.table(home / "falling.csv", names, own[::-1])
    # A key appears: the header is written again in the middle, with other columns.
    wider = [["epoch", *names[:2], "kl", "grad_norm"], *([0, *row[:2], 0.01, row[2]] for row in own[10:])]
    makers.table(home / "wider.csv", names, [*own[:10], *wider])
    makers.table(home / "duplicates.csv", names, [row for row in own[:14] for _ in range(3)])
    sparse = [
        [step, loss, None if step in (7, 8, 12) else norm, mark]
        for (step, loss, norm), mark in zip(own, MARKS, strict=True)
    ]
    makers.table(home / "missing.csv", [*names, "note"], sparse)

    text = (home / "plain.csv").read_text()
    lines = text.splitlines(keepends=True)
    write(home / "crlf-bom.csv", ["\ufeff", text.replace("\n", "\r\n")])
    write(home / "mac.csv", [text.replace("\n", "\r")])
    write(home / "utf16.csv", [b"\xff\xfe" + text.encode("utf-16-le")])
    write(home / "padded.csv", ["# seed 7\n# grad_norm, run 3\n\n", text.replace(",", " , ")])
    write(home / "semicolons.csv", [text.replace(",", ";").replace(".", ",")])
    write(home / "blanks.csv", ["# ", text.replace(",", "   ")])
    write(home / "bars.csv", [text.replace(",", "|")])
    write(
        home / "nul-runs.csv",
        ["".join(lines[:6]), "\0" * 300 + "\n", "".join(lines[6:9]), "\0" * 7, "".join(lines[9:])],
    )
    write(home / "unterminated.csv", [text.rstrip("\n")])
    write(home / "cut.csv", [text[: text.rindex(",") - 3]])
    config = '"{""lr"": 0.001, ""betas"": [0.9, 0.999]}"'
    notes = [config, "", '"two\nlines, one cell"', 'a 5" disk', "tensor(1., device='cuda:0')"]
    quoted = [
        [step, note, f'"{norm}"' if step % 2 else norm] for (step, _, norm), note in zip(own, notes * 4, strict=True)
    ]
    makers.table(home / "quoted.csv", ["step", "config", "grad_norm"], quoted)
    stray = [*lines[:5], lines[5].replace(",", ',"', 1), *lines[6:]]
    write(home / "stray-quote.csv", stray)
    write(home / "stray-quote-header.csv", ['"', text])
    odd = [*lines[:4], "Traceback (most recent call last):\n", "4,0.5,0.25,9,9\n", "5,1.0\n", ",,\n", *lines[5:]]
    write(home / "odd-rows.csv", odd)
    tensors = [f"{step},tensor({loss}, device='cuda:0'),tensor({norm}, device='cuda:0')\n" for step, loss, norm in own]
    write(home / "tensors.csv", ["step,loss,grad_norm\n", *tensors])
    words = [
        "nan",
        "NaN",
        "-nan",
        "1.#QNAN",
        "inf",
        "-Infinity",
        "+INF",
        "1.#INF",
        "0.05%",
        "1e999",
        "NA",
        "-",
        "True",
    ]
    makers.table(home / "words.csv", ["iteration", "grad_norm"], ([f"{k}/13", word] for k, word in enumerate(words)))
    makers.table(
        home / "names.csv",
        ["", "step", "loss", "loss", " grad_norm ", ""],
        ([k, *row, 7] for k, row in enumerate([s, x, x, n] for s, x, n in own)),
    )
    write(home / "table.csv", ["id,step,text\n", *(f'{k},{k},"Break an egg, or {k}"\n' for k in range(5))])
    write(home / "empty" / "metrics.csv", [])
    makers.git_lfs_pointer(home / "lfs-pointer.csv")


# One kind of missing value after the other.
MARKS = ["", "NA", "N/A", "None", "null", "-", "<NA>", " "] * 2 + ["a", "b", "c", "d"]


# --- rlprobe ---------------------------------------------------------------------------------------------------------


def rlprobe(home: Path) -> None:
    """Recordings by rlprobe's own RunWriter."""
    damaged = Training(norms(40, seed=30, put={36: NAN, 37: NAN}))
    events = [("train_begin", 1), ("checkpoint", 20), ("checkpoint", 38), ("nan_detected", 37)]
    makers.rlprobe_run(home / "closed", damaged, nan_counts={36: 12, 37: 480}, events=events)

    # Killed: the parts of a live run, the last event line cut, no end.
    crashed = makers.rlprobe_run(home / "crashed", Training(norms(130, seed=31)), events=events[:3], close=False)
    with (crashed / "events.jsonl").open("a") as file:
        file.write('{"timestamp": 1700000131.0, "kind": "nan_de')

    # Dead before its first flush, yet the event says why.
    makers.rlprobe_run(home / "no-steps", Training([]), events=[("train_begin", 0), ("nan_detected", 1)])

    # The NaN is only in what rank 3 saw.
    makers.rlprobe_run(home / "ranks", Training(norms(16, seed=32)))
    rank = Training(norms(16, seed=33, put={11: NAN}))
    makers.rlprobe_run(home / "ranks" / "rank-003", rank, nan_counts={11: 3})
    for empty in home.rglob("samples"):
        if not any(empty.iterdir()):
            empty.rmdir()


# --- hostile ---------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """A number as Thrift's compact protocol writes it: zigzag, then groups of seven bits."""
    value *= 2
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def parquet_run(directory: Path, forge: Callable[[bytes, pq.FileMetaData], bytes]) -> None:
    """An rlprobe directory whose `steps.parquet` is sound until `forge` changes it."""
    makers.rlprobe_run(directory, Training([]))
    shutil.rmtree(directory / "samples", ignore_errors=True)
    path = directory / "steps.parquet"
    table = pa.table({"step": list(range(16)), "loss": [1.0] * 16, "grad_norm": norms(16, seed=40)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    whole, metadata = path.read_bytes(), pq.read_metadata(path)
    path.write_bytes(forge(whole, metadata))


def replace_once(whole: bytes, old: bytes, new: bytes) -> bytes:
    """Replaces what occurs exactly once, so that a forgery hits its place or fails."""
    assert whole.count(old) == 1, (old, whole.count(old))
    return whole.replace(old, new)


def footer_forged(whole: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The file with a changed footer, and the length that belongs to it."""
    (length,) = struct.unpack("<I", whole[-8:-4])
    footer = change(whole[-8 - length : -8])
    return whole[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def page_forged(whole: bytes, metadata: pq.FileMetaData, sizes: Callable[[int, int], tuple[int, int]]) -> bytes:
    """The file with other sizes in the page header of its last column, whose bytes nothing follows but the footer.

    The longer header is paid for in the footer: the page lies within its column as before.
    """
    column = metadata.row_group(0).column(metadata.num_columns - 1)
    at, plain, stored = column.data_page_offset, column.total_uncompressed_size, column.total_compressed_size
    assert whole[at : at + 2] == b"\x15\x00", "a data page"
    fields = whole[at + 2 :]
    numbers, used = [], 0
    for _ in range(2):
        assert fields[used] == 0x15
        used += 1
        value, shift = 0, 0
        while True:
            byte = fields[used]
            value |= (byte & 0x7F) << shift
            used, shift = used + 1, shift + 7
            if byte < 0x80:
                break
        numbers.append(value // 2)
    uncompressed, compressed = sizes(numbers[0], numbers[1])
    header = b"\x15" + varint(uncompressed) + b"\x15" + varint(compressed)
    forged = whole[: at + 2] + header + fields[used:]
    before = b"\x16" + varint(plain) + b"\x16" + varint(stored)
    after = b"\x16" + varint(plain) + b"\x16" + varint(stored + len(header) - used)
    return footer_forged(forged, lambda footer: replace_once(footer, before, after))


def hostile(home: Path) -> None:
    """Each is one attack; README.md tells its story."""
    depth = 20_000
    opening, closing = '{"a":' * depth, "}" * depth
    deep = f'{{"step": 2, "loss": 1.0, "grad_norm": 0.5, "tree": {opening}1{closing}}}\n'
    write(home / "deep.jsonl", [line({"step": 1, "loss": 1.0, "grad_norm": 0.5}), deep, "[" * depth, "\n"])
    state = makers.trainer_state_text(Training(norms(4, seed=41)))
    brackets = "[" * depth + "]" * depth
    write(home / "deep-state" / "trainer_state.json", [state.replace('"max_steps": 4', f'"max_steps": {brackets}')])
    write(home / "cut-header" / "trainer_state.json", [state[: state.index('"log_history"') + 8]])
    write(home / "empty" / "trainer_state.json", [])
    write(home / "no-history" / "trainer_state.json", ['{"global_step": 7}\n'])
    write(home / "history-is-no-list" / "trainer_state.json", ['{"log_history": {"step": 1, "loss": NaN}}\n'])

    numbers = [
        '{"step": 1, "loss": 1e999, "grad_norm": -1e999}\n',
        '{"step": 9223372036854775807, "loss": 1e-400, "grad_norm": -0.0}\n',
        '{"step": 123456789012345678901234567890, "loss": 1, "grad_norm": 1}\n',
        '{"step": -5, "loss": 0x10, "grad_norm": 1}\n',
        '{"step": NaN, "loss": 1, "grad_norm": 1}\n',
        '{"step": null, "loss": 01, "grad_norm": 1.}\n',
        '{"step": 3.75, "loss": 1, "grad_norm": "1e3"}\n',
        '{"step": "10/0", "loss": +1, "grad_norm": .5}\n',
        f'{{"step": 8, "loss": {"9" * 900}, "grad_norm": 0.{"1" * 900}}}\n',
    ]
    write(home / "numbers.jsonl", numbers)
    keys: list[str | bytes] = [
        '{"step": 1, "step": 2, "grad_norm": 1, "grad_norm": NaN, "": 5}\n',
        '{"step": 3, "grad_norm": 1, "\\u0000\\ud800": 1, "<img src=x onerror=alert(1)>": 2, '
        "\"=cmd|' /C calc'!A0\": 3}\n",
        b'{"step": 4, "grad_norm": 1, "\xff\xfe loss": NaN, "\x1b[31mloss": NaN}\n',
        f'{{"step": 5, "grad_norm": 1, "{"loss" * 700}": NaN}}\n',
        '{"step": 6, "grad_norm": 1, "a/b": {"c/d": {"loss": 2}}, "a": {"b/c": {"d/loss": 3}}}\n',
    ]
    write(home / "keys.jsonl", keys)
    write(home / "open-quotes.csv", ["step,grad_norm,note\n", *(f'{k},0.5,"{k}\n' for k in range(1, 40))])
    write(
        home / "cells.csv",
        [
            "step,loss,grad_norm\n",
            "9223372036854775807,1e-400,-0.0\n",
            "123456789012345678901234567890,1,1\n",
            "-5,0x10,1_000\n",
            "nan,1,1\n",
            "7.5,1,1e3\n",
            f"8,{'9' * 900},0.{'1' * 900}\n",
            b"9,\xff\xfe,1\n",
            "\0\0\n",
            "10,\0,\x1b[31m\n",
            "=cmd|' /C calc'!A0,1,1\n",
            f"11{',2' * 5000}\n",
        ],
    )
    noise = bytes((k * k * 31 + k // 7 * 17) % 256 for k in range(2048))
    write(home / "noise.jsonl", [noise])
    write(home / "web-app" / "manifest.json", ['{"name": "app", "short_name": "a", "icons": [], "start_url": "/"}\n'])
    write(
        home / "newer-schema" / "manifest.json",
        [json.dumps({"schema_version": 99, "run_id": "r", "algorithm": "grpo", "created_at": "2026-01-01"})],
    )

    parquet_run(home / "forged-footer-length", lambda whole, _: whole[:-8] + struct.pack("<I", 0xFFFF_FFF0) + b"PAR1")
    parquet_run(home / "cut-footer", lambda whole, _: whole[: len(whole) - 40])
    rows_before, rows_after = b"\x16" + varint(16) + b"\x19", b"\x16" + varint(2**40) + b"\x19"
    parquet_run(
        home / "forged-rows",
        lambda whole, _: footer_forged(whole, lambda footer: replace_once(footer, rows_before, rows_after)),
    )
    most = 2**31 - 1
    parquet_run(
        home / "forged-page-size", lambda whole, about: page_forged(whole, about, lambda _, small: (most, small))
    )
    parquet_run(
        home / "forged-page-length", lambda whole, about: page_forged(whole, about, lambda large, _: (large, most))
    )
    parquet_run(home / "not-parquet", lambda *_: b"PK\x03\x04 not a Parquet file at all")


def write(path: Path, parts: Iterable[str | bytes]) -> None:
    """Writes a file from pieces of text and bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(part if isinstance(part, bytes) else part.encode() for part in parts))


def main() -> None:
    """Writes all fixtures; what stood in their folders before is removed."""
    assert math.isnan(NAN)
    for build in (hf_trainer, jsonl, csv, rlprobe, hostile):
        home = HERE / build.__name__
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        build(home)
        files = [path for path in home.rglob("*") if path.is_file()]
        print(f"{build.__name__}: {len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")


if __name__ == "__main__":
    main()
