# SPDX-License-Identifier: BSD-3-Clause
# In: a grammar in GBNF and the bytes of a vocabulary's tokens. Out: which tokens may come next.
# Characters become bytes of UTF-8, so that tokens which end inside of a character are judged too. A state is a set of
# places in rules, each with the frame to return to; frames that one place calls at one position are one, so that
# ambiguous grammars cost no more than their places. States are made when they are first met and kept.
"""Grammars that constrain what a model says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from torchette.errors import InputError

_MOST_TEXT, _MOST_SYMBOLS, _MOST_REPEATS, _MOST_DEPTH = 1 << 20, 200_000, 10_000, 100
_MOST_STATES, _MOST_MASKS, _MOST_WORK = 20_000, 1_000, 3_000_000
_END = -1 << 40
_ANY = ((0, 0x10FFFF),)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_WIDTHS = {"x": 2, "u": 4, "U": 8}


class Frame:
    """Where a rule returns to: pairs of a place and its own frame; None of the root."""

    __slots__ = ("returns",)

    def __init__(self, returns: frozenset[tuple[int, Any]]) -> None:
        self.returns = returns


class State:
    """What may follow at one position."""

    __slots__ = ("accepts", "items", "loops", "next")

    def __init__(self, items: frozenset[tuple[int, Frame]], accepts: bool) -> None:
        self.items, self.accepts = items, accepts
        self.next: dict[int, State | None] = {}
        self.loops = 0


class Vocabulary:
    """The bytes of tokens by number; empty for tokens that no grammar allows, such as special ones.

    They form a tree, level by level: a node is a prefix. Of the sorted tokens, `lo` to `own` are it, `lo` to `hi` begin with it;
    `byte` is its last byte, `below` the bytes of these tokens as bits, `kids` to `kids_end` its children.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.order = np.array(
            sorted((i for i, t in enumerate(tokens) if t), key=tokens.__getitem__), np.int64
        )
        words = [tokens[i] for i in self.order]
        length = np.array([len(word) for word in words], np.int64)
        start, text = np.cumsum(length) - length, np.frombuffer(b"".join(words), np.uint8)
        has: np.ndarray = np.zeros((len(words), 256), bool)
        has[np.repeat(np.arange(len(words)), length), text] = True
        bits = np.packbits(has, axis=1, bitorder="little").view(np.uint64)
        everything = np.bitwise_or.reduce(bits, axis=0, keepdims=True)
        levels = [[np.array([n]) for n in (-1, 0, 0, len(words), 0)] + [everything]]
        node: np.ndarray = np.zeros(len(words), np.int64)  # of each word, its beginning of that depth
        made, depth = 1, 0
        live = np.flatnonzero(length > depth)
        while len(live):
            byte = text[start[live] + depth]
            fresh: np.ndarray = np.ones(len(live), bool)
            fresh[1:] = (
                (byte[1:] != byte[:-1]) | (node[live[1:]] != node[live[:-1]]) | (live[1:] > live[:-1] + 1)
            )
            first, depth = np.flatnonzero(fresh), depth + 1
            lo = live[first]
            hi: np.ndarray = live[np.append(first[1:], len(live)) - 1] + 1
            own = lo + np.add.reduceat((length[live] == depth).astype(np.int64), first)
            levels.append([node[lo], lo, own, hi, byte[first], np.bitwise_or.reduceat(bits[live], first)])
            node[live] = made + np.cumsum(fresh) - 1
            made += len(first)
            live = live[length[live] > depth]
        parent, self.lo, self.own, self.hi, self.byte, self.below = map(np.concatenate, zip(*levels))
        self.kids, self.kids_end = (parent.searchsorted(np.arange(made), side) for side in ("left", "right"))


class Grammar:
    """A grammar in GBNF, the notation of llama.cpp: ``root ::= "yes" | "no"``, with classes ``[^a-z]``, ``.``, groups,
    ``* + ? {m,n}``, comments.

    Raises:
        InputError: code "bad-grammar", with the line: a name without a rule, left recursion, too many repeats, or the size.
    """

    def __init__(self, text: str, root: str = "root") -> None:
        parser = _Parser(text, root)
        self.text = text
        rules = [alternatives or [] for alternatives in parser.rules]
        ends = _settled(rules, True)
        if not ends[0]:
            raise _error(
                f"rule {root!r} never comes to an end", "give it an alternative that does not call itself"
            )
        rules = [
            [one for one in a if all(s < 0 or ends[s] for s in one)] for a in rules
        ]  # the others lead nowhere
        self._nullable = _settled(rules, False)
        self._starts: list[list[int]] = []
        self._symbols: list[int] = []
        for alternatives in rules:
            self._starts.append([])
            for alternative in alternatives:
                self._starts[-1].append(len(self._symbols))
                self._symbols += [*alternative, _END]
        self._order(parser.names)
        self._classify(parser.sets)
        self._forget()
        self._vocabulary: Vocabulary | None = None
        self._work = _MOST_WORK
        self.start: State = self._start()

    # --- tables -------------------------------------------------------------------------------------------------

    def _order(self, names: list[str]) -> None:
        """Finds an order in which each rule comes after those that call it first."""
        count, nullable = len(self._starts), self._nullable
        first: list[list[int]] = [[] for _ in range(count)]
        for rule, starts in enumerate(self._starts):
            for place in starts:
                while (symbol := self._symbols[place]) >= 0:
                    if symbol != rule or self._symbols[place + 1] != _END:  # which returns to where it is
                        first[rule].append(symbol)
                    if not nullable[symbol]:
                        break
                    place += 1
        self._rank, color, rank = [0] * count, [0] * count, count
        for root in range(count):
            trail = [(root, iter(first[root]))] if not color[root] else []
            color[root] = color[root] or 1
            while trail:
                rule, calls = trail[-1]
                for called in calls:
                    if color[called] == 1:
                        raise _error(
                            f"rule {names[called]!r} calls itself before any character (left recursion)",
                            "put what is repeated first: list ::= item list | item",
                        )
                    if not color[called]:
                        color[called] = 1
                        trail.append((called, iter(first[called])))
                        break
                else:
                    trail.pop()
                    color[rule], rank = 2, rank - 1
                    self._rank[rule] = rank

    def _classify(self, sets: list[int]) -> None:
        """Groups bytes into classes that no set splits; each set is a bitmap of classes."""
        looks: dict[tuple[int, ...], int] = {}
        self._table = bytearray(256)
        self._members = [0] * 256
        for byte in range(256):
            look = tuple(i for i, members in enumerate(sets) if members >> byte & 1)
            self._table[byte] = kind = looks.setdefault(look, len(looks))
            self._members[kind] |= 1 << byte
        self._classes = [0] * len(sets)
        for look, number in looks.items():
            for i in look:
                self._classes[i] |= 1 << number

    def _forget(self) -> None:
        """Drops states and frames that were kept; those in use stay whole."""
        for state in getattr(self, "_states", {}).values():
            state.next, state.loops = {}, 0
        self._states: dict[Any, State] = {}
        self._masks: dict[State, np.ndarray] = {}
        self._frames: dict[Any, Frame] = {}

    # --- moves --------------------------------------------------------------------------------------------------

    def _frame(self, returns: frozenset[Any]) -> Frame:
        return self._frames.setdefault(returns, Frame(returns))

    def _start(self) -> State:
        return self._close(
            [(start, self._frame(frozenset([(-1, None)]))) for start in self._starts[0]], self._nullable[0]
        )

    def _close(self, items: list[tuple[int, Any]], accepts: bool = False) -> State:
        """The state of these places with the rules that they call and end."""
        symbols, seen, ends = self._symbols, set[tuple[int, Any]](), set[tuple[int, Any]]()
        calls: dict[int, list[tuple[int, Any]]] = {}
        done: set[int] = set()
        while True:
            while items:
                item = items.pop()
                place, frame = item
                if place < 0:
                    accepts = True
                    continue
                if item in seen:
                    continue
                seen.add(item)
                symbol = symbols[place]
                if symbol == _END:
                    items.extend(frame.returns)
                elif symbol < 0:
                    ends.add(item)
                else:
                    if symbol not in done:
                        calls.setdefault(symbol, []).append(item)
                    if self._nullable[symbol]:
                        items.append((place + 1, frame))
            if not calls:
                break
            rule = min(calls, key=self._rank.__getitem__)
            returns: set[tuple[int, Any]] = set()
            for place, frame in calls.pop(rule):
                if symbols[place + 1] == _END:  # nothing is left to do there: its own return will do
                    returns |= frame.returns
                else:
                    returns.add((place + 1, frame))
            done.add(rule)
            frame = self._frame(frozenset(returns))
            items = [(start, frame) for start in self._starts[rule]]
            self._work -= len(returns)
        self._work -= len(seen) + 1
        if self._work < 0:
            raise _error(
                "the grammar has too many readings of one text",
                "say less at once: fewer alternatives that begin alike",
            )
        key = (frozenset(ends), accepts)
        return self._states.setdefault(key, State(key[0], accepts))

    def _move(self, state: State, kind: int) -> State | None:
        """The state after a byte of that class; None where none may come."""
        if kind in state.next:
            return state.next[kind]
        symbols, classes = self._symbols, self._classes
        items = [(place + 1, frame) for place, frame in state.items if classes[~symbols[place]] >> kind & 1]
        following = self._close(items) if items else None
        state.next[kind] = following
        if following is state:
            state.loops |= self._members[kind]
        return following

    def advance(self, state: State, text: bytes) -> State | None:
        """The state after more text; None where the grammar does not allow it."""
        self._work = _MOST_WORK
        for kind in text.translate(self._table):
            following = self._move(state, kind)
            if following is None:
                return None
            state = following
        if len(self._states) > _MOST_STATES or len(self._frames) > _MOST_STATES:
            self._forget()
            self.start = self._start()
        return state

    def mask(self, state: State, vocabulary: Vocabulary) -> np.ndarray:
        """Returns the mask of allowed tokens. Raises InputError if that takes too long."""
        if self._vocabulary is not vocabulary:
            self._vocabulary, self._masks = vocabulary, {}
        if (kept := self._masks.get(state)) is not None:
            return np.unpackbits(kept, count=len(vocabulary.tokens)).view(bool)
        self._work = _MOST_WORK
        states, kinds = [state], max(self._table) + 1
        table = np.frombuffer(self._table, np.uint8)
        nodes: np.ndarray = np.zeros(1, np.int64)  # what tokens begin with
        at: np.ndarray = np.zeros(1, np.int64)  # the number of the state after it
        begins, ends = [nodes[:0]], [nodes[:0]]
        while len(nodes):
            loops = np.frombuffer(b"".join(one.loops.to_bytes(32, "little") for one in states), np.uint64)
            goes_on: np.ndarray = (vocabulary.below[nodes] & ~loops.reshape(-1, 4)[at]).any(1)
            begins.append(vocabulary.lo[nodes[~goes_on]])  # whatever follows stays in that state
            ends.append(vocabulary.hi[nodes[~goes_on]])
            nodes, at = nodes[goes_on], at[goes_on]
            self._work -= len(nodes)
            counts = vocabulary.kids_end[nodes] - vocabulary.kids[nodes]
            kids = np.repeat(vocabulary.kids[nodes] - np.cumsum(counts) + counts, counts) + np.arange(
                counts.sum()
            )
            moves = np.repeat(at, counts) * kinds + table[vocabulary.byte[kids]]
            asked: np.ndarray = np.zeros(len(states) * kinds, bool)
            asked[moves] = True
            after: np.ndarray = np.full(len(asked), -1)
            numbers: dict[State, int] = {}
            for move in np.flatnonzero(asked).tolist():
                following = self._move(states[move // kinds], move % kinds)
                if following is not None:
                    after[move] = numbers.setdefault(following, len(numbers))
            states, at = list(numbers), after[moves]
            nodes, at = kids[at >= 0], at[at >= 0]
            begins.append(vocabulary.lo[nodes])
            ends.append(vocabulary.own[nodes])
            inner = vocabulary.own[nodes] < vocabulary.hi[nodes]
            nodes, at = nodes[inner], at[inner]
        count = len(vocabulary.order)
        change = np.bincount(np.concatenate(begins), minlength=count + 1)
        change -= np.bincount(np.concatenate(ends), minlength=count + 1)
        allowed: np.ndarray = np.zeros(len(vocabulary.tokens), bool)
        allowed[vocabulary.order[np.cumsum(change[:-1]) > 0]] = True
        if len(self._masks) >= _MOST_MASKS:
            self._masks.clear()
        self._masks[state] = np.packbits(allowed)
        return allowed


class Matcher:
    """A place in a grammar that moves as tokens come."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, state: State | None = None) -> None:
        self.grammar, self.vocabulary = grammar, vocabulary
        self.state = state or grammar.start

    def allowed(self, ends: Sequence[int]) -> np.ndarray:
        """For each token, whether it may come; `ends` only where the text may end."""
        mask = self.grammar.mask(self.state, self.vocabulary)
        mask[list(ends)] = self.state.accepts
        return mask

    def after(self, token: int) -> Matcher:
        """The place after that token, which must be allowed."""
        state = self.grammar.advance(self.state, self.vocabulary.tokens[token])
        if state is None:
            raise InputError(f"the grammar does not allow token {token} here", code="bad-grammar")
        return Matcher(self.grammar, self.vocabulary, state)

    @property
    def is_done(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        return self.state.accepts and not self.state.items


def _error(message: str, *hints: str) -> InputError:
    return InputError(message, hints=hints, code="bad-grammar")


def _settled(rules: list[list[list[int]]], bytes_too: bool) -> list[bool]:
    """Whether each rule has an alternative of such rules only, or byte sets if `bytes_too`."""
    found = [False] * len(rules)
    waiting: list[list[list[int]]] = [[] for _ in rules]
    work: list[int] = []
    for number, alternatives in enumerate(rules):
        for alternative in alternatives:
            if not bytes_too and any(symbol < 0 for symbol in alternative):
                continue
            needs = [sum(symbol >= 0 for symbol in alternative), number]
            for symbol in alternative:
                if symbol >= 0:
                    waiting[symbol].append(needs)
            if not needs[0]:
                work.append(number)
    while work:
        number = work.pop()
        if not found[number]:
            found[number] = True
            for needs in waiting[number]:
                needs[0] -= 1
                if not needs[0]:
                    work.append(needs[1])
    return found


def _sequences(lo: int, hi: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Byte ranges of the UTF-8 characters from lo to hi."""
    for edge in (0x80, 0x800, 0xD800, 0xE000, 0x10000):
        if lo < edge <= hi:
            yield from _sequences(lo, edge - 1)
            yield from _sequences(edge, hi)
            return
    if lo >= 0xD800 and hi < 0xE000:  # surrogates are no characters
        return
    for bits in (6, 12, 18) if hi >= 0x80 else ():
        low = (1 << bits) - 1
        if lo & ~low != hi & ~low and (lo & low or hi & low != low):
            edge = (lo | low) + 1 if lo & low else hi & ~low
            yield from _sequences(lo, edge - 1)
            yield from _sequences(edge, hi)
            return
    yield tuple(zip(chr(lo).encode(), chr(hi).encode()))


class _Parser:
    """Text to rules: lists of alternatives of symbols: rules by number, sets of bytes by ~number. Rule 0 is the root;
    groups and repeats are separate rules, so that nested ones do not multiply."""

    def __init__(self, text: str, root: str) -> None:
        if not isinstance(text, str):
            raise _error(f"a grammar is text, not {type(text).__name__}")
        if len(text) > _MOST_TEXT:
            raise _error(f"the grammar has {len(text)} characters, at most {_MOST_TEXT} are taken")
        self.text, self.at, self.depth, self.size = text, 0, 0, 0
        self.rules: list[list[list[int]] | None] = []
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.sets: list[int] = []
        self._set_numbers: dict[int, int] = {}
        self._kept: dict[Any, list[int]] = {}
        self._rule(root)
        self._space()
        while self.at < len(text):
            name = self._name()
            self._space()
            if not name or not self._takes("::="):
                raise self._wrong("a rule is expected: name ::= ...")
            number = self._rule(name)
            if self.rules[number] is not None:
                raise self._wrong(f"rule {name!r} is there twice")
            self._space()
            self.rules[number] = self._alternatives(name)
        missing = [name for name, number in self.numbers.items() if self.rules[number] is None]
        if missing:
            raise _error(f"the grammar has no rule {', '.join(map(repr, missing[:5]))}")

    def _wrong(self, what: str) -> InputError:
        line = self.text.count("\n", 0, self.at) + 1
        return _error(f"the grammar, line {line}: {what}, found {self.text[self.at : self.at + 20]!r}")

    def _space(self) -> None:
        text = self.text
        while self.at < len(text):
            if text[self.at] == "#":
                self.at = len(text) if (end := text.find("\n", self.at)) < 0 else end
            elif text[self.at].isspace():
                self.at += 1
            else:
                return

    def _takes(self, what: str) -> bool:
        found = self.text.startswith(what, self.at)
        self.at += len(what) * found
        return found

    def _name(self) -> str:
        start = self.at
        while self.at < len(self.text) and ((c := self.text[self.at]).isalnum() or c in "-_"):
            self.at += 1
        return self.text[start : self.at]

    def _rule(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = self._new(name, None)
        return self.numbers[name]

    def _new(self, name: str, alternatives: list[list[int]] | None) -> int:
        self.rules.append(alternatives)
        self.names.append(name)
        self._grow(1 + sum(map(len, alternatives or ())))
        return len(self.rules) - 1

    def _grow(self, count: int) -> None:
        self.size += count
        if self.size > _MOST_SYMBOLS:
            raise self._wrong(f"the grammar needs more than {_MOST_SYMBOLS} symbols")

    def _alternatives(self, name: str) -> list[list[int]]:
        found = [self._sequence(name)]
        while self._takes("|"):
            self._space()
            found.append(self._sequence(name))
        return found

    def _sequence(self, name: str) -> list[int]:
        found: list[int] = []
        last: list[int] | None = None
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in "|)":
                break
            if c in "*+?{":
                if last is None:
                    raise self._wrong("something to repeat is expected")
                del found[len(found) - len(last) :]
                last = self._repeat(name, last, *self._bounds())
            elif c == '"':
                self.at += 1
                last = []
                while not self._takes('"'):
                    last += [self._set(1 << byte) for byte in self._bytes(self._character('"'))]
            elif c == "[":
                last = self._class()
            elif c == ".":
                self.at += 1
                last = self._characters(_ANY)
            elif c == "(":
                self.at += 1
                self.depth += 1
                if self.depth > _MOST_DEPTH:
                    raise self._wrong(f"groups are nested more than {_MOST_DEPTH} deep")
                self._space()
                last = [self._new(name, self._alternatives(name))]
                if not self._takes(")"):
                    raise self._wrong("a ) is expected")
                self.depth -= 1
            else:
                start = self.at
                called = self._name()
                if not called:
                    raise self._wrong("a string, class, name or group is expected")
                self._space()
                if self.text.startswith("::=", self.at):  # the next rule
                    self.at = start
                    break
                last = [self._rule(called)]
            found += last
            self._grow(len(last))
            self._space()
        return found

    def _bounds(self) -> tuple[int, int | None]:
        c = self.text[self.at]
        self.at += 1
        if c != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[c]
        end = self.text.find("}", self.at)
        least, comma, most = self.text[self.at : max(end, self.at)].partition(",")
        least, most = least.strip(), most.strip()
        if (
            end < 0
            or any(n and not (n.isascii() and n.isdigit() and len(n) < 10) for n in (least, most))
            or not (least or most)
        ):
            raise self._wrong("a repeat is expected: {2}, {2,} or {2,4}")
        low = int(least or 0)
        high = (int(most) if most else None) if comma else low
        if max(low, high or 0) > _MOST_REPEATS or (high is not None and high < low):
            raise self._wrong(f"repeats go up, to {_MOST_REPEATS} at most")
        self.at = end + 1
        return low, high

    def _repeat(self, name: str, what: list[int], least: int, most: int | None) -> list[int]:
        if len(what) != 1:
            what = [self._new(name, [what])]
        tail: list[int] = []
        if most is None:
            number = self._new(name, [[]])
            self.rules[number] = [[*what, number], []]
            self._grow(2)
            tail = [number]
        else:
            for _ in range(most - least):
                tail = [self._new(name, [[*what, *tail], []])]
        self._grow(least)
        return what * least + tail

    def _character(self, end: str) -> int:
        if self.at >= len(self.text) or self.text[self.at] == "\n":
            raise self._wrong(f"a {end} is expected")
        c = self.text[self.at]
        self.at += 1
        if c != "\\":
            return ord(c)
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind not in _WIDTHS:
            return ord(_ESCAPES.get(kind, kind or "\\"))
        digits = self.text[self.at : self.at + _WIDTHS[kind]]
        try:
            code = int(digits, 16) if digits.isalnum() and len(digits) == _WIDTHS[kind] else -1
        except ValueError:
            code = -1
        if not 0 <= code <= 0x10FFFF:
            raise self._wrong(f"{_WIDTHS[kind]} hexadecimal digits of a character are expected")
        self.at += _WIDTHS[kind]
        return code

    def _bytes(self, code: int) -> bytes:
        if 0xD800 <= code < 0xE000:
            raise self._wrong("surrogates are no characters")
        return chr(code).encode()

    def _class(self) -> list[int]:
        self.at += 1
        negated = self._takes("^")
        ranges: list[tuple[int, int]] = []
        while not self._takes("]"):
            low = high = self._character("]")
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self._character("]")
            if high < low:
                raise self._wrong("ranges go up")
            ranges.append((low, high))
        if negated:
            ranges, given, low = [], sorted(ranges), 0
            for first, last in given:
                if first > low:
                    ranges.append((low, first - 1))
                low = max(low, last + 1)
            if low <= 0x10FFFF:
                ranges.append((low, 0x10FFFF))
        if not ranges:
            raise self._wrong("the class has no character")
        return self._characters(tuple(ranges))

    def _characters(self, ranges: tuple[tuple[int, int], ...]) -> list[int]:
        """A byte set for ASCII, and a sequence of sets for each other range."""
        if ranges not in self._kept:
            single, longer = 0, []
            for sequence in (s for low, high in ranges for s in _sequences(low, high)):
                sets = [(1 << high + 1) - (1 << low) for low, high in sequence]
                if len(sets) == 1:
                    single |= sets[0]
                else:
                    longer.append([self._set(members) for members in sets])
            alternatives = ([[self._set(single)]] if single else []) + longer
            if not alternatives:
                raise self._wrong("surrogates are no characters")
            self._kept[ranges] = (
                alternatives[0] if len(alternatives) == 1 else [self._new("class", alternatives)]
            )
        return self._kept[ranges]

    def _set(self, members: int) -> int:
        if members not in self._set_numbers:
            self._set_numbers[members] = len(self.sets)
            self.sets.append(members)
        return ~self._set_numbers[members]
