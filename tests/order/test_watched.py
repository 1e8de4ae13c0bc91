"""Samplers that are watched by several threads at a time."""

import random

from foreload.batch.generators.loops import LoopGenerators
from foreload.order.own_sampler.ahead import Lookahead


def test_a_draw_is_seen_whatever_else_is_watched_meanwhile() -> None:
    lookahead = Lookahead(LoopGenerators())
    lookahead.begin(sampler=None)
    with lookahead.watched(ahead=False):
        random.random()
        with lookahead.watched(ahead=False):
            pass
    assert not lookahead.is_allowed
