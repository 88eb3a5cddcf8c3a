"""The page of a run of 500 steps: seconds to write, size, seconds until a reader sees the first chart.

    python benchmarks/report_page.py [--quick]

The run is made up: 16 prompts a step, pools of 2 to 16 samples as `balance` draws them, answers of 400 characters for
four prompts a step. Chromium reads the page from disk, three times; the median counts. Needs Chromium on the path.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from machine import machine

from openrlhf_ada.core.types import PromptPool, Sample, TrainingGroup
from openrlhf_ada.reporting.report import write_report
from openrlhf_ada.reporting.run_log import Row, RunLog, sample_records
from openrlhf_ada.reporting.run_record import Run, read_run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from browser import browser

RESULTS = Path(__file__).parent / "results" / "report_page.json"
PROMPTS, WAVE, CAP = 16, 4, 16
CONFIG = {
    "rollout": {"n_samples_per_prompt": 4, "batch_size": PROMPTS},
    "algo": {"advantage": {"estimator": "dr_grpo"}},
    "ada": {"mode": "seq", "exit": "balance", "wave": WAVE, "max_samples": CAP},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50 steps; saves nothing")
    args = parser.parse_args()
    steps = 50 if args.quick else 500
    with TemporaryDirectory() as folder:
        run = made_up(Path(folder) / "run", steps)
        began = time.perf_counter()
        page = Path(folder) / "report.html"
        write_report(run, page)
        figures = {"steps": steps, "write_s": round(time.perf_counter() - began, 2)}
        figures |= {"megabytes": round(page.stat().st_size / 1e6, 2), "first_chart_s": seconds_to_see(page)}
    if not args.quick:
        RESULTS.write_text(json.dumps({"figures": figures, "machine": machine()}, indent=2) + "\n")
    print(json.dumps(figures))


def made_up(run_dir: Path, steps: int) -> Run:
    rng = np.random.default_rng(0)
    with RunLog(run_dir, CONFIG, text_prompts_per_step=4) as log:
        for step in range(1, steps + 1):
            visits = [_visit(rng, step * PROMPTS + i) for i in range(PROMPTS)]
            log.log_samples(step, [row for rows in visits for row in rows])
            drawn, signal = sum(map(len, visits)), float(np.mean([_has_signal(rows) for rows in visits]))
            names = {"ada/drawn": drawn, "ada/prompts": PROMPTS, "ada/drawn_tokens": 200 * drawn, "ada/step_s": 30.0}
            shares = {"ada/signal_share": signal, "ada/signal_share_uniform": 0.5, "ada/first_wave_metric_mean": 0.4}
            phases = {"timing/generation": 20.0, "timing/ppo_train": 8.0, "rollout/response_length_mean": 200.0}
            log.log_step(step, names | shares | phases)
    return read_run(run_dir)


def _visit(rng: np.random.Generator, key: int) -> list[Row]:
    outcomes = (rng.random(CAP) < rng.beta(0.6, 1.0)).astype(float)
    drawn = next((n for n in range(WAVE, CAP, WAVE) if 2 <= outcomes[:n].sum() <= n - 2), CAP)
    pool = PromptPool(
        key, [Sample(key, i, float(score), float(score), 200) for i, score in enumerate(outcomes[:drawn])]
    )
    signal = 0 < outcomes[:drawn].sum() < drawn
    group = TrainingGroup(key, (0, 1, 2, 3), (0.5 * signal,) * 4, (1.0,) * 4, resolved=bool(signal))
    return sample_records(f"{key % 512}", "What is it? " * 20, pool, ["word " * 80] * drawn, group, label="42")


def _has_signal(rows: list[Row]) -> bool:
    return any(row["coefficient"] for row in rows)


def seconds_to_see(page: Path) -> float:
    seconds = []
    with browser() as tab:
        tab.look(1200, 900)
        for _ in range(3):
            tab.open("about:blank#")
            began = time.perf_counter()
            tab.call("Page.navigate", url=page.as_uri())
            tab.wait_for("document.readyState == 'complete' && document.querySelector('.plot svg') != null")
            seconds.append(time.perf_counter() - began)
    return round(statistics.median(seconds), 2)


if __name__ == "__main__":
    main()
