"""What the CPU's engine tells its loops to do, as numbers that both know by name."""

from typing import NamedTuple

PIECE = 1 << 16  # elements whose sums are added up on their own, whoever does it
LINE = 64  # bytes from one tensor's counter to the next: what one thread writes must not slow another
# What to do with the elements of an item: gauge and move a whole tensor, gauge or move a part of one, ...
WHOLE, GAUGE, MOVE, SUM_UP, WEIGH = range(5)  # ... and, where sums are agreed in between, leave them or go on from them


class Item(NamedTuple):
    """What one thread does with elements of one tensor."""

    kind: int
    tensor: int
    begin: int
    end: int
    first: int  # of the tensor's pieces
    pieces: int  # how many the tensor has
    owner: int


class Context(NamedTuple):
    """What the threads of a team are given: addresses, and numbers of things."""

    num_threads: int
    thread_num: int
    give_way: int
    gauge: int  # the functions for the stages of an item
    weigh: int
    move: int
    tensors: int
    table: int
    item_count: int
    items: int
    sum_count: int
    parts: int
    counters: int
    rates: int
    statistics: int
    grad_scale: int
    sums: int
    verdict: int
    window: int  # values of each tensor's window


class Question(NamedTuple):
    """What a judgement is given: addresses, the number of tensors, and whether the batch is to be remembered."""

    table: int
    tensors: int
    sums: int
    sizes: int
    history: int
    window: int
    verdict: int
    remember: int


ITEM, CONTEXT, QUESTION = (len(kind._fields) for kind in (Item, Context, Question))
