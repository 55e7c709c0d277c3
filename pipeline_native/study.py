"""Trains all architectures at one geometry with equal steps and tokens, and prints the table.

    python -m pipeline_native.study --text stories.txt --extra sampled.txt --out study -- --dim 96 --steps 1000

What follows `--` goes to every run of train.py. Finished runs, one line each in results.jsonl, are not repeated.
"""

import argparse
import json
import statistics
from pathlib import Path

from .configs import ARCHITECTURES
from .train import main as train

RUNS = [(arch, 42) for arch in ("arch1", "arch2_4", "arch4", "arch2_4_sync", "arch3", "arch5")]
RUNS += [(arch, 7) for arch in ("arch1", "arch2_4", "arch4")]


def table(results: list[dict]) -> str:
    """One Markdown row an architecture: delays, parameters, held-out nats and perplexity, means and half-ranges."""

    def mean(values: list[float], digits: int) -> str:
        spread = f" ± {(max(values) - min(values)) / 2:.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.{digits}f}{spread}"

    lines = ["| architecture | δd | δe | parameters | seeds | nats | perplexity |", "|---|---|---|---|---|---|---|"]
    for arch in sorted({r["arch"] for r in results}):
        runs = [r for r in results if r["arch"] == arch]
        delays = ARCHITECTURES[arch]
        cells = [f"`{arch}`", str(delays["denseDelay"]), str(delays["expertDelay"]), f"{runs[0]['parameters']:,}"]
        cells += [str(len(runs)), mean([r["nats"] for r in runs], 3), mean([r["perplexity"] for r in runs], 2)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--extra", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("rest", nargs="*", help="arguments of train.py")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    log = a.out / "results.jsonl"
    results = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for arch, seed in RUNS:
        if any(r["arch"] == arch and r["seed"] == seed for r in results):
            continue
        common = ["--arch", arch, "--seed", str(seed), "--text", a.text, "--extra", a.extra, "--resume"]
        result = train([*common, "--out", str(a.out / f"{arch}-{seed}"), *a.rest])
        results.append({"arch": arch, "seed": seed, **result})
        with log.open("a") as file:
            file.write(json.dumps(results[-1]) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
