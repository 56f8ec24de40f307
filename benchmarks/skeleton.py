"""`skeleton` against `sequential` on the same server: time, work, span, cache, for several questions.

Every question is asked with both strategies, one request at a time and several at a time. The two answers differ in
length, so the speed-up is given twice: as it is, and for each token of the answer (what a reader waits for a token).
It does not say which answer is better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from report import Report, finish, parser
from servers import scheme

from anabranch import Answer, Orchestrator, Sampling

QUESTIONS = (
    "What are the most useful habits for keeping a small flat tidy?",
    "Give me tips for learning to cook at home.",
    "What are the benefits of riding a bicycle to work?",
    "What should I pack for a week of hiking in the mountains?",
    "What are common reasons why houseplants die?",
    "How can a small cafe attract more customers?",
)
STRATEGIES = ("sequential", "skeleton")
TOKENS = 400
"""Cap on an answer's completion tokens: a small model does not always stop by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The answers of one strategy to all questions, and the seconds that all of them took together."""

    answers: Sequence[Answer]
    elapsed_s: float


def length(answer: Answer) -> int:
    """Completion tokens that ended up in the answer: neither the outline's nor wasted ones."""
    written = [record for record in answer.generations if not record.wasted]
    built_on = {parent for record in written for parent in record.parents}
    return sum(record.completion for record in written if record.id not in built_on)


def cached_share(answers: Iterable[Answer]) -> float:
    """Which part of all prompts came from the cache."""
    prompt = sum(answer.usage.prompt for answer in answers)
    return sum(answer.usage.cached for answer in answers) / prompt if prompt else float("nan")


async def ask_all(
    orch: Orchestrator, strategy: str, questions: Sequence[str], at_a_time: int, tokens: int
) -> Series:
    """Ask all questions, so many at a time."""
    slots = asyncio.Semaphore(at_a_time)
    loop = asyncio.get_running_loop()

    async def ask(question: str) -> Answer:
        async with slots:
            return await orch.ask(
                question, strategy=strategy, sampling=Sampling(temperature=0.0), max_tokens=tokens
            )

    began = loop.time()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(question)) for question in questions]
    return Series(answers=[task.result() for task in tasks], elapsed_s=loop.time() - began)


async def compare(
    url: str, questions: Sequence[str], at_a_time: int, tokens: int, repeats: int
) -> dict[str, Series]:
    """Both strategies, by turns; of each the repeat that took least time, since other load only adds."""
    best: dict[str, Series] = {}
    async with Orchestrator(url) as orch:
        for strategy in STRATEGIES:
            await orch.ask("What is good about a rainy day?", strategy=strategy, max_tokens=80)
        for _ in range(repeats):
            for strategy in STRATEGIES:
                series = await ask_all(orch, strategy, questions, at_a_time, tokens)
                if strategy not in best or series.elapsed_s < best[strategy].elapsed_s:
                    best[strategy] = series
    return best


def describe(report: Report, url: str, at_a_time: int, strategy: str, series: Series) -> None:
    """One line of the table."""
    answers = series.answers
    report.row(
        scheme(url),
        at_a_time,
        strategy,
        median(answer.timing.wall_s for answer in answers),
        median(answer.timing.first_token_s or float("nan") for answer in answers),
        fmean(length(answer) for answer in answers),
        fmean(answer.usage.work for answer in answers),
        fmean(answer.usage.span for answer in answers),
        f"{cached_share(answers):.0%}",
        sum(answer.usage.wasted for answer in answers),
        sum(map(length, answers)) / series.elapsed_s,
        sum(not answer.active for answer in answers),
    )


def speed_ups(report: Report, url: str, at_a_time: int, found: dict[str, Series]) -> None:
    """The ratios of the two strategies."""
    pairs = list(zip(found["sequential"].answers, found["skeleton"].answers, strict=True))
    raw = [plain.timing.wall_s / ours.timing.wall_s for plain, ours in pairs]
    for_a_token = [
        ratio * length(ours) / length(plain) for ratio, (plain, ours) in zip(raw, pairs, strict=True)
    ]
    throughput = [sum(map(length, series.answers)) / series.elapsed_s for series in found.values()]
    report.row(
        scheme(url),
        at_a_time,
        median(raw),
        f"{min(raw):.2f} to {max(raw):.2f}",
        median(for_a_token),
        f"{min(for_a_token):.2f} to {max(for_a_token):.2f}",
        throughput[1] / throughput[0],
        median(ours.usage.parallelism for _, ours in pairs),
    )


async def measure(
    urls: Iterable[str],
    *,
    questions: Sequence[str] = QUESTIONS,
    loads: Sequence[int] = (1, 4),
    tokens: int = TOKENS,
    repeats: int = 1,
) -> list[Report]:
    """Both tables."""
    figures = Report(
        title=f"skeleton and sequential, {len(questions)} questions, greedy, at most {tokens} tokens an answer",
        columns=(
            "backend",
            "at a time",
            "strategy",
            "median wall s",
            "median first token s",
            "answer tokens",
            "work",
            "span",
            "cached",
            "wasted, all",
            "answer tok/s, all",
            "fell back",
        ),
        numbers_from=3,
    )
    ratios = Report(
        title="skeleton over sequential",
        columns=(
            "backend",
            "at a time",
            "speed-up of an answer",
            "least to most",
            "speed-up of a token",
            "least to most of a token",
            "throughput",
            "parallelism",
        ),
    )
    for url in urls:
        for at_a_time in loads:
            found = await compare(url, questions, at_a_time, tokens, repeats)
            for strategy, series in found.items():
                describe(figures, url, at_a_time, strategy, series)
            speed_ups(ratios, url, at_a_time, found)
    return [figures, ratios]


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--backend", action="append", metavar="URL", help="any backend; repeatable")
    options.add_argument("--load", type=int, nargs="+", default=[1, 4], metavar="N", help="requests at a time")
    options.add_argument("--tokens", type=int, default=TOKENS, help="most completion tokens of an answer")
    options.add_argument("--repeats", type=int, default=1, help="the quickest of so many is shown")
    chosen = options.parse_args()
    urls = chosen.backend or ["local:"]
    finish(asyncio.run(measure(urls, loads=chosen.load, tokens=chosen.tokens, repeats=chosen.repeats)), chosen)
