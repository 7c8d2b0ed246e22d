"""What the quick form leaves out, and says so: forms that cannot be their engine's best one.

After the first round a form stays only if in some work it comes within `FAR` of its engine's fastest form. Servers
are started only with the form that led offline in most works. Octavo's own forms always stay. Off switch: run without
`--quick`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from octavo.bench.peers.contender import Contender, Sample, Work

FAR = 1.3
"""Times slower in every work: rounds differ by less, so such a form is not the best one."""
_OWN = "octavo"

Rates = dict[tuple[str, str], float]
"""(contender, work) -> median rate."""


def rates_of(samples: Sequence[Sample], works: Sequence[Work]) -> Rates:
    found: dict[tuple[str, str], list[float]] = {}
    figures = {work.name: work.figure for work in works}
    for sample in samples:
        found.setdefault((sample.contender, sample.work), []).append(sample.rate(figures[sample.work]))
    return {key: median(values) for key, values in found.items()}


def hopeless(contenders: Sequence[Contender], rates: Rates, works: Sequence[Work]) -> dict[str, str]:
    """Names of those to leave out, each with its reason."""
    left = {}
    for contender in contenders:
        gaps = [gap for work in works if (gap := _gap(contender, contenders, rates, work)) is not None]
        if contender.peer != _OWN and gaps and min(gaps) > FAR:
            left[contender.name] = (
                f"{contender.name} was left out after one round: in every work another form of it was "
                f"{min(gaps):.1f} times as fast or more"
            )
    return left


def followers(contenders: Sequence[Contender], rates: Rates, works: Sequence[Work]) -> dict[str, str]:
    """Servers that are not started, each with its reason. Where nothing ran offline, none is named."""
    left = {}
    for peer in {contender.peer for contender in contenders} - {_OWN}:
        offline = [one for one in contenders if one.peer == peer and one.way == "offline"]
        leads = Counter(leader for work in works if (leader := _leader(offline, rates, work)) is not None)
        if not leads:
            continue
        form = leads.most_common(1)[0][0]
        for one in contenders:
            if one.peer == peer and one.way != "offline" and one.form != form:
                left[one.name] = f"{one.name} was not started: offline {form} led"
    return left


def _leader(contenders: Sequence[Contender], rates: Rates, work: Work) -> str | None:
    ran = [one for one in contenders if (one.name, work.name) in rates]
    return max(ran, key=lambda one: rates[one.name, work.name]).form if ran else None


def _gap(contender: Contender, contenders: Sequence[Contender], rates: Rates, work: Work) -> float | None:
    """How many times as fast its engine's fastest form is; None where it did not do the work."""
    own = rates.get((contender.name, work.name))
    if not own:
        return None
    rivals = [one for one in contenders if (one.peer, one.way) == (contender.peer, contender.way)]
    return max(rates.get((one.name, work.name), 0.0) for one in rivals) / own
