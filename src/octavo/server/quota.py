"""What one key may take: requests a minute, tokens a minute, answers at once.

A `Client` lives as long as its key's name does, over reloads. Rates are token buckets that hold one minute's worth.
Requests are taken off before anything of them is read; the tokens of a prompt when it is known, and generated ones as
they come, so that the bucket may go below nothing: then new requests wait, and open answers go on. Without keys all
clients are one. Off switch: limits of 0, the default.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from octavo.server.errors import ApiError

Clock = Callable[[], float]


class Bucket:
    """Fills at `per_minute` a minute, up to a minute's worth; never full of more, and empty at no fixed depth."""

    def __init__(self, per_minute: int, clock: Clock = time.monotonic) -> None:
        self._rate = per_minute / 60
        self._most = float(per_minute)
        self._clock = clock
        self._level = self._most
        self._at = clock()

    def wait(self, needed: float) -> float:
        """Seconds until it holds `needed`."""
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (min(needed, self._most) - self._level) / self._rate)

    def take(self, count: int) -> None:
        self._level -= count


class Client:
    """One key's account."""

    def __init__(self, tenant: str, limits: dict[str, int], clock: Clock = time.monotonic) -> None:
        """tenant: whom its requests belong to, for the scheduler and the cache; "" without keys."""
        self.tenant = tenant
        self.open = 0
        """Answers (choices) being made."""
        self._clock = clock
        self.set_limits(limits)

    def set_limits(self, limits: dict[str, int]) -> None:
        """Takes new limits; a rate that stays the same keeps its bucket."""
        if getattr(self, "limits", None) == limits:
            return
        self.limits = dict(limits)
        requests, tokens = limits["requests_per_minute"], limits["tokens_per_minute"]
        self._requests = Bucket(requests, self._clock) if requests else None
        self._tokens = Bucket(tokens, self._clock) if tokens else None

    def arrive(self) -> None:
        """A request has come; 429 where its key has had its share."""
        if self._requests is None:
            return
        if (wait := self._requests.wait(1)) > 0:
            raise self._refusal("requests a minute", "requests_per_minute", wait)
        self._requests.take(1)

    def begin(self, choices: int, prompt_tokens: int) -> None:
        """Takes a checked request on; `end` gives back what it holds."""
        most = self.limits["max_concurrent"]
        if most and choices > most:
            raise ApiError(f"n asks for {choices} answers at once, and this key may have {most}.", param="n")
        if most and self.open + choices > most:
            raise self._refusal("answers at once", "max_concurrent", 1.0)
        if self._tokens is not None and (wait := self._tokens.wait(1)) > 0:
            raise self._refusal("tokens a minute", "tokens_per_minute", wait)
        self.open += choices
        self.spend(prompt_tokens)

    def spend(self, tokens: int) -> None:
        """Tokens that were computed for this key."""
        if self._tokens is not None:
            self._tokens.take(tokens)

    def end(self, choices: int) -> None:
        self.open -= choices
        assert self.open >= 0, self.tenant

    def _refusal(self, what: str, limit: str, wait: float) -> ApiError:
        who = f"The key {self.tenant!r}" if self.tenant else "This server"
        return ApiError(
            f"{who} has had its {self.limits[limit]} {what}; try again in {math.ceil(wait)} s.",
            status=429,
            code="rate_limit_exceeded",
            retry_after=max(1, math.ceil(wait)),
        )
