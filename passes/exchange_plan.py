"""A change of ownership as sends over the ring: who sends which box to whom, in which order and
which way round, and how long that takes. Planner and code generation both ask here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import permutations

from spyrec.ir.layout import Layout
from spyrec.sim.device import DeviceSpec, Ring

from .exchange_beside import Around
from .exchange_landing import TRIES, ExchangePlan, plan_beside
from .exchange_owners import rebalanced
from .exchange_reshape import reshaped
from .homes import Boxes, Order, local_layout
from .kernel import memory_order
from .ring_schedule import least_cycles, mean_cycles, schedule, sender_cycles
from .ring_ways import Fragment
from .sends import Ends, Send, Sizes, copy_cycles, divided, plan_sends

COPY_DIMS = 6  # of an instruction, one of which the vector unit needs for the lanes
LONG = 750  # core cycles from which an exchange is worth tries that take long themselves
MAX_PERMUTED = 4  # dimensions longer than one element whose orders are all tried


def plan_exchange(
    own: Boxes, need: Boxes, ends: Ends, device: DeviceSpec, beside: bool = False
) -> ExchangePlan:
    """What stays on its core is copied by the vector unit while the ring is busy with the rest, as
    far as that takes no longer than to send it like the rest. Few large sends that get in each
    other's way are divided. Where several own the same, all is tried from the nearest, from the
    least busy and from owners chosen box by box. Of the best plans the order is improved, then
    what is sent and the order at once.
    ``beside``: sends may land beside the receivers' buffers, where that is faster.

    LayoutError when nobody owns what a core needs.
    """
    known = _Known(device, device.text, device.cores.count, device.ring)
    return _planned(own, need, ends, known, beside)


@dataclass(frozen=True)
class _Known:
    """A device as part of a key."""

    device: DeviceSpec = field(compare=False)
    text: str
    cores: int
    ring: Ring


@lru_cache(maxsize=256)
def _planned(
    own: Boxes, need: Boxes, ends: Ends, known: _Known, beside: bool
) -> ExchangePlan:
    device = known.device
    tried, plain = _plain(own, need, ends, known)
    found: list[tuple[ExchangePlan, Callable[[int], ExchangePlan | None]]] = [
        (plan, partial(_scheduled, plan.sends, plan.copies, ends, device)) for plan in plain
    ]
    best = plain[0]
    if beside and ends.dims < COPY_DIMS and best.cycles >= LONG:
        for sends in tried:
            moved, copies = _parted(sends, ends, device)
            made = plan_beside(moved, copies, Around(need, ends, device), best.cycles)
            found += [(made[1], made[0].plan)] if made else []
    found.sort(key=lambda x: x[0].cycles)
    if best.cycles >= LONG:
        effort = EFFORT // IMPROVED
        plans = [found[0][0], *(improve(effort) for _, improve in found[:IMPROVED])]
        best = min((plan for plan in plans if plan), key=lambda plan: plan.cycles)
    around = Around(need, ends, device)
    beside = beside and ends.dims < COPY_DIMS
    begun = [best]
    if beside and best.cycles < LONG and _worth(best) and _over(best, around) > HOPE:
        for sends in tried:
            made = plan_beside(*_parted(sends, ends, device), around, best.cycles)
            begun += [made[1]] if made else []
    better = (_reshaped(plan, own, around, beside) for plan in begun)
    return min(better, key=lambda plan: plan.cycles)


def _worth(plan: ExchangePlan) -> bool:
    """Is better sends being searched for worth it?"""
    return plan.cycles >= RESHAPED_FROM and len(plan.sends) <= RESHAPED_MOST


def _over(plan: ExchangePlan, around: Around) -> float:
    """A plan's cycles over what its sends take if they load all segments alike, or its busiest
    sender."""
    sent = [around.ends.fragment(s) for s in plan.sends]
    return plan.cycles / mean_cycles(sent, around.device)


def _reshaped(plan: ExchangePlan, own: Boxes, around: Around, beside: bool) -> ExchangePlan:
    """With better sends, looked for the longer where it is likely that the order is at fault."""
    if not _worth(plan):
        return plan
    patience = LONGER if ORDER[0] <= _over(plan, around) <= ORDER[1] else PATIENCE
    return reshaped(plan, own, around, beside, RESHAPED, patience)


@lru_cache(maxsize=256)
def _plain(
    own: Boxes, need: Boxes, ends: Ends, known: _Known
) -> tuple[tuple[tuple[Send, ...], ...], tuple[ExchangePlan, ...]]:
    """Sends, by which owners they come from, and the best plans in which they land in place."""
    device = known.device
    stops = device.cores.count + 1
    tried = dict.fromkeys(plan_sends(own, need, stops, spread) for spread in (False, True))
    shared = [rebalanced(sends, own, need, ends, device) for sends in tried]
    tried |= dict.fromkeys(sends for sends in shared if sends)
    plans = dict.fromkeys(plan for sends in tried for plan in _ways_to(sends, ends, device))
    return tuple(tried), tuple(sorted(plans, key=lambda plan: plan.cycles)[:IMPROVED])


def _parted(
    sends: Sequence[Send], ends: Ends, device: DeviceSpec, cycles: int = 0
) -> tuple[tuple[Send, ...], tuple[Send, ...]]:
    """What the senders move, and what stays on its core and the vector units copy, for which they
    have ``cycles`` if that is known."""
    moved = tuple(s for s in sends if not s.stays)
    stays = [s for s in sends if s.stays]
    kept, copies = _shared(stays, moved, ends, device, cycles) if stays else ((), ())
    return (*moved, *kept), copies


def _ways_to(sends: tuple[Send, ...], ends: Ends, device: DeviceSpec) -> Iterator[ExchangePlan]:
    """Plans for the sends, with more or less of what stays copied, and with all divided where they
    are in each other's way."""
    made = _scheduled(*_parted(sends, ends, device), ends, device)
    yield made
    if any(s.stays for s in made.sends):  # the sends take longer than the least
        most = int(COPIED * made.cycles)
        more_made = _scheduled(*_parted(sends, ends, device, most), ends, device)
        yield more_made
        made = min(made, more_made, key=lambda plan: plan.cycles)
    if len(made.sends) > DIVIDED_MOST or made.cycles > made.schedule.cycles:
        return
    if made.cycles > CROWDED * mean_cycles([ends.fragment(s) for s in made.sends], device):
        for parts in DIVIDED:
            finer = tuple(part for s in made.sends for part in divided(s, ends, parts))
            yield _scheduled(finer, made.copies, ends, device)


def _shared(
    stays: Sequence[Send], moved: Sequence[Send], ends: Ends, device: DeviceSpec, cycles: int
) -> tuple[tuple[Send, ...], tuple[Send, ...]]:
    """Of what stays on its core, what the sender moves beside its other work and what the vector
    unit copies: that, as long as it is done no later than the sender would be, or in ``cycles``."""
    least = least_cycles([ends.fragment(s) for s in moved], device) if moved else 0
    least = max(least, cycles)
    sending, copying = dict[int, int](), dict[int, int]()
    for s in moved:
        took = sender_cycles(ends.fragment(s), device)
        sending[s.core] = sending.get(s.core, 0) + took
    kept: list[Send] = []
    copies: list[Send] = []
    for s in (part for whole in stays for part in divided(whole, ends)):
        sent = sending.get(s.core, 0) + sender_cycles(ends.fragment(s), device)
        copied = copying.get(s.core, 0) + copy_cycles([s], ends, device)
        if copied <= max(sent, least) and ends.dims < COPY_DIMS:
            copying[s.core] = copied
            copies.append(s)
        else:
            sending[s.core] = sent
            kept.append(s)
    return _joined(kept), _joined(copies)


def _joined(parts: Iterable[Send]) -> tuple[Send, ...]:
    """Neighbouring parts of one send as one."""
    found: list[Send] = []
    for part in parts:
        both = _both(found[-1], part) if found else None
        if both is None:
            found.append(part)
        else:
            found[-1] = both
    return tuple(found)


def _both(one: Send, other: Send) -> Send | None:
    """Two sends as one where the other goes on with what the one ends with."""
    sides = [t for t, (a, b) in enumerate(zip(one.box, other.box, strict=True)) if a != b]
    if one.cores != other.cores or one.core != other.core or len(sides) != 1:
        return None
    t = sides[0]
    (start, n), (after, m) = one.box[t], other.box[t]
    offset = (*one.offset[:t], one.offset[t] + n, *one.offset[t + 1 :])
    if start + n != after or offset != other.offset:
        return None
    return replace(one, box=(*one.box[:t], (start, n + m), *one.box[t + 1 :]))


EFFORT = 12_000  # of the search for better orders: about so many fragments are timed
RESHAPED = 30_000  # likewise, of that for better sends
RESHAPED_FROM, RESHAPED_MOST = 300, 100  # core cycles, and sends at most, of what is worth it
PATIENCE, LONGER = 0.1, 1.0  # of that effort without a gain is enough
ORDER = 1.03, 1.5  # times what its sends take at least: the order of them may be at fault
HOPE = 1.5  # times that, from which short exchanges are worth a try beside the buffers
IMPROVED = 1  # plans, the best of those tried
DIVIDED = 2, 4  # parts
DIVIDED_MOST = 64  # sends of an exchange in which they may be divided
CROWDED = 1.1  # times what they would take if all segments were loaded alike
COPIED = 0.95  # of the time of an exchange, for copying what stays


def _scheduled(
    sends: tuple[Send, ...], copies: tuple[Send, ...], ends: Ends, device: DeviceSpec,
    effort: int = 0,
) -> ExchangePlan:
    tries = None if effort else TRIES
    done = schedule([ends.fragment(s) for s in sends], device, tries=tries, effort=effort)
    cycles = max(done.cycles, copy_cycles(copies, ends, device))
    return ExchangePlan(sends, done, copies, cycles)


# Orders of the buffers ------------------------------------------------------------------------


def orders(layout: Layout, boxes: Boxes) -> Iterator[Order]:
    """Ways to order the dimensions of a buffer, the usual one first; of many dimensions, only of
    those longer than one step."""
    rank = len(layout.shape)
    usual = memory_order(local_layout(layout, boxes))
    yield usual
    long = [d for d in usual if any(b[d][1] > layout.unit(d) for b in boxes)]
    if len(long) > MAX_PERMUTED:
        return
    short = tuple(d for d in usual if d not in long)
    for chosen in permutations(long):
        order = (*short, *chosen)
        if order != usual and len(order) == rank:
            yield order


def best_orders(
    like: Layout, own: Boxes, needs: Sequence[Boxes], device: DeviceSpec,
    home_free: bool = True, free: Sequence[bool] = (),
) -> tuple[Order | None, list[Order | None]]:
    """Orders of the buffer of the owners and of those of each of ``needs`` with which senders take
    up the fewest runs; None for the usual ones, which stay where others gain little. ``home_free``,
    ``free``: which may be chosen (default: all)."""
    known = _Known(device, device.text, device.cores.count, device.ring)
    home, there = _best_orders(like, own, tuple(needs), known, home_free, tuple(free))
    return home, list(there)


@lru_cache(maxsize=1024)
def _best_orders(
    like: Layout, own: Boxes, needs: tuple[Boxes, ...], known: _Known, home_free: bool,
    free: tuple[bool, ...],
) -> tuple[Order | None, tuple[Order | None, ...]]:
    device = known.device
    homes, *targets = (
        [local_layout(like, boxes, o) for o in orders(local_layout(like, boxes), boxes)]
        for boxes in (own, *needs)
    )
    homes = homes if home_free else homes[:1]
    may = free or (True,) * len(needs)
    targets = [some if m else some[:1] for some, m in zip(targets, may, strict=True)]
    stops = device.cores.count + 1
    works = [_Work.of(plan_sends(own, need, stops)) for need in needs]
    usual = [Ends(homes[0], some[0]) for some in targets]
    pairs = [*zip(works, usual, strict=True)]
    if all(work.run_share(ends, device) < SHORT_RUNS for work, ends in pairs):
        return None, (None,) * len(needs)
    best = sum(work.cycles(ends, device) for work, ends in pairs), usual
    for home in homes:
        chosen = [
            min((Ends(home, t) for t in some), key=lambda ends: work.cycles(ends, device))
            for work, some in zip(works, targets, strict=True)
        ]
        total = sum(w.cycles(ends, device) for w, ends in zip(works, chosen, strict=True))
        if total < best[0]:
            best = total, chosen
    return (
        _unless(best[1][0].source, homes[0]),
        tuple(_unless(e.target, some[0]) for e, some in zip(best[1], targets, strict=True)),
    )


def _unless(layout: Layout, usual: Layout) -> Order | None:
    return None if layout == usual else memory_order(layout)


SHORT_RUNS = 0.1  # share of a sender's time that its runs may take with the usual orders


@dataclass(frozen=True)
class _Work:
    """For each core the sizes of what it sends to others, and how often."""

    sent: tuple[Mapping[Sizes, int], ...]

    @staticmethod
    def of(sends: Sequence[Send]) -> _Work:
        found: dict[int, Counter[Sizes]] = {}
        for s in sends:
            if not s.stays:
                found.setdefault(s.core, Counter())[tuple(n for _, n in s.box)] += 1
        return _Work(tuple(found.values()))

    def cycles(self, ends: Ends, device: DeviceSpec) -> int:
        """What the busiest sender takes with nobody in its way."""
        took = {
            sizes: sender_cycles(Fragment(0, 2, *ends.bytes_and_runs(sizes)), device)
            for sent in self.sent for sizes in sent
        }
        return max((sum(took[z] * n for z, n in sent.items()) for sent in self.sent), default=0)

    def run_share(self, ends: Ends, device: DeviceSpec) -> float:
        """The part of it that runs beyond the first of each send take."""
        runs = [
            sum((ends.bytes_and_runs(z)[1] - 1) * n for z, n in sent.items()) for sent in self.sent
        ]
        took = self.cycles(ends, device)
        return max(runs, default=0) * device.ring.run_cycles / took if took else 0.0
