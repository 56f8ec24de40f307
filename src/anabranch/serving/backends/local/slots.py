"""SlotTable: which of llama.cpp's slots a call runs in, so that no prefix is computed twice.

llama.cpp keeps one cache for each slot and shares nothing between them. What a slot holds can be saved to a file and
restored into another, in milliseconds. So the first of several siblings (the leader) computes its prompt, saves it,
and the others restore it; a branch that goes on goes back to the slot that still holds it.

The table decides and remembers; it sends nothing and waits for nothing. `want` and `drop` say which calls wait,
`plan` gives slots to as many as it can, `saved` and `done` report back.

Invariant: a slot has one lease at most; a file that a lease is to restore is not given up before that lease is done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

WORTH = 32
"""Tokens that must be saved for a copy of a prefix to be worth its file (about 1 MB each on a 135M model)."""
_REMEMBERED_GROUPS = 1024

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A call that wants a slot.

    Attributes:
        tokens: its prompt.
        group: names its fork; empty for none.
        siblings: calls of the fork that are known to be wanted, this one included.
    """

    tokens: Tokens
    group: str = ""
    siblings: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A slot for one call.

    Attributes:
        restore: name of the file to load into the slot first; None to take it as it is.
        save: name of the file to put the computed prompt into before going on; None where nobody needs it.
    """

    wish: Wish
    slot: int
    restore: str | None = None
    save: str | None = None


@dataclass(slots=True)
class _Slot:
    number: int
    held: Tokens = ()
    used: int = 0
    lease: Lease | None = None


@dataclass(slots=True)
class _File:
    tokens: Tokens
    readers: int = 0


@dataclass(slots=True)
class _Found:
    """The best that there is for a prompt: how many of its tokens a free slot and a file hold."""

    slot: _Slot
    in_slot: int
    file: str | None = None
    in_file: int = 0

    @property
    def best(self) -> int:
        return max(self.in_slot, self.in_file)


@dataclass(slots=True)
class SlotTable:
    """Decides which slot each call gets.

    Attributes:
        slots: how many there are.
        room: tokens that all saved files together may hold.
    """

    slots: int
    room: int
    _slots: list[_Slot] = field(init=False)
    _waiting: dict[int, Wish] = field(init=False, default_factory=dict)
    _files: OrderedDict[str, _File] = field(init=False, default_factory=OrderedDict)
    _groups: OrderedDict[str, bool] = field(init=False, default_factory=OrderedDict)
    _clock: int = field(init=False, default=0)
    _unlink: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._slots = [_Slot(number) for number in range(self.slots)]

    def want(self, key: int, wish: Wish) -> None:
        """A call waits for a slot; smaller keys go first."""
        self._waiting[key] = wish

    def drop(self, key: int) -> None:
        """A call waits no more. Unknown keys are ignored."""
        self._waiting.pop(key, None)

    def plan(self) -> list[tuple[int, Lease]]:
        """Leases for those that can run now, first come first served.

        A call whose prefix another one is just computing for it waits, and lets others go ahead.
        """
        granted = []
        for key in sorted(self._waiting):
            if all(slot.lease for slot in self._slots):
                break
            wish = self._waiting.pop(key)
            if lease := self._serve(wish):
                granted.append((key, lease))
            else:
                self._waiting[key] = wish
        return granted

    def saved(self, lease: Lease) -> None:
        """The lease's prompt is in its file now: others may restore it."""
        assert lease.save is not None
        self._files[lease.save] = _File(lease.wish.tokens)
        if lease.wish.group:
            self._groups[lease.wish.group] = True
        self._slots[lease.slot].lease = Lease(wish=lease.wish, slot=lease.slot, restore=lease.restore)
        self._trim()

    def done(self, lease: Lease, held: Tokens) -> None:
        """The lease is over, and its slot holds these tokens (as far as is known). Repeats are ignored."""
        slot = self._slots[lease.slot]
        if slot.lease is None or slot.lease.wish is not lease.wish:
            return
        slot.lease, slot.held = None, held
        self._clock += 1
        slot.used = self._clock
        if lease.restore and (file := self._files.get(lease.restore)):
            file.readers -= 1
            self._trim()

    def discarded(self) -> list[str]:
        """Names of files that nobody needs any more, each once."""
        names, self._unlink = self._unlink, []
        return names

    # The policy

    def _serve(self, wish: Wish) -> Lease | None:
        found = self._find(wish.tokens)
        if self._in_the_making(wish.tokens) >= found.best + WORTH:
            return None
        lease = self._lease(wish, found)
        self._note(wish.group)
        self._slots[lease.slot].lease = lease
        if lease.restore:
            self._files[lease.restore].readers += 1
            self._files.move_to_end(lease.restore)
        return lease

    def _lease(self, wish: Wish, found: _Found) -> Lease:
        spread = self._others_need(wish, found) or self._fork_begins(wish, found)
        save = self._name() if spread else None
        spare = self._spare()
        if found.in_file >= WORTH and self._better_copied(found, spare):
            return Lease(wish=wish, slot=spare.number, restore=found.file, save=save)
        slot = found.slot if found.in_slot >= WORTH else spare
        return Lease(wish=wish, slot=slot.number, save=save)

    def _better_copied(self, found: _Found, spare: _Slot) -> bool:
        """Whether to copy a prefix into a spare slot rather than to overwrite what the best slot holds beyond it."""
        if found.in_file >= found.in_slot + WORTH:
            return True
        lost = len(found.slot.held) - found.in_slot
        return spare is not found.slot and found.in_slot - found.in_file < lost

    def _others_need(self, wish: Wish, found: _Found) -> bool:
        """Whether a waiting call shares a prefix with this one that it finds nowhere else."""
        taken = found.slot if found.in_slot >= WORTH else None
        for other in self._waiting.values():
            shared = common(wish.tokens, other.tokens)
            if shared >= WORTH and shared >= self._find(other.tokens, without=taken).best + WORTH:
                return True
        return False

    def _fork_begins(self, wish: Wish, found: _Found) -> bool:
        """Whether siblings are to be expected for whom nothing has been saved yet."""
        if not wish.group or self._groups.get(wish.group):
            return False
        forked = wish.siblings > 1 or wish.group in self._groups
        return forked and len(wish.tokens) - found.in_file >= WORTH

    def _find(self, tokens: Tokens, without: _Slot | None = None) -> _Found:
        free = [slot for slot in self._slots if slot.lease is None and slot is not without]
        scores = [(common(slot.held, tokens), -slot.used, slot) for slot in free]
        in_slot, _, slot = max(scores, key=lambda score: score[:2], default=(0, 0, self._slots[0]))
        found = _Found(slot=slot, in_slot=in_slot)
        for name, file in self._files.items():
            if (shared := common(file.tokens, tokens)) > found.in_file:
                found.file, found.in_file = name, shared
        return found

    def _in_the_making(self, tokens: Tokens) -> int:
        """How much of a prompt is just being computed and will be saved."""
        leases = (slot.lease for slot in self._slots if slot.lease and slot.lease.save)
        return max((common(lease.wish.tokens, tokens) for lease in leases), default=0)

    def _spare(self) -> _Slot:
        """The free slot whose contents are missed least: an empty one, or the one unused for longest."""
        free = [slot for slot in self._slots if slot.lease is None]
        return min(free, key=lambda slot: (bool(slot.held), slot.used))

    def _name(self) -> str:
        self._clock += 1
        return f"prefix-{self._clock}.bin"

    def _note(self, group: str) -> None:
        if group:
            self._groups.setdefault(group, False)
            self._groups.move_to_end(group)
            if len(self._groups) > _REMEMBERED_GROUPS:
                self._groups.popitem(last=False)

    def _trim(self) -> None:
        """Give up the files unused for longest, until the rest fits."""
        total = sum(len(file.tokens) for file in self._files.values())
        for name in _idle(self._files.items()):
            if total <= self.room:
                break
            total -= len(self._files.pop(name).tokens)
            self._unlink.append(name)


def _idle(files: Iterable[tuple[str, _File]]) -> list[str]:
    return [name for name, file in files if not file.readers]


def common(left: Tokens, right: Tokens) -> int:
    """How many leading tokens two prompts have in common."""
    most = min(len(left), len(right))
    if left[:most] == right[:most]:
        return most
    low, high = 0, most  # the first `low` are equal, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
