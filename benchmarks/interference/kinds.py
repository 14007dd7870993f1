"""Histories, generated: what an agent wrote, and how others came into its way afterwards.

Every kind of interference is a function that writes it into a scene. Who the others are (a person
without a tag, another agent, both in turn), how their writes are shared out among transactions, and
which rows nobody comes near, is drawn by lot.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress

from benchmarks.interference.model import (
    AGENT,
    SETUP,
    Add,
    Delete,
    History,
    Insert,
    Invalid,
    Part,
    Transaction,
    Update,
    Value,
    World,
    Write,
)
from benchmarks.interference.scene import OWNERS, STAGES, Scene


def _updated(scene: Scene, *, counter: bool = False, two: bool = False) -> int:
    """Have the agent set a deal's stage, in some cases more; return its key."""
    key = scene.deal()
    values: dict[str, Value] = {"stage": "agent's"}
    if two:
        values["amount"] = 1000
    scene.agent.append(Update("deals", key, values))
    if counter:
        scene.agent.append(Add(key, scene.rng.choice((-5, 3, 10))))
    return key


def _same_column(scene: Scene) -> None:
    scene.others(Update("deals", _updated(scene), {"stage": "theirs"}))


def _same_value(scene: Scene) -> None:
    scene.others(Update("deals", _updated(scene), {"stage": "agent's"}))


def _repaired(scene: Scene) -> None:
    key = _updated(scene)
    scene.others(Update("deals", key, {"stage": scene.was(key)["stage"]}))


def _other_column(scene: Scene) -> None:
    key = _updated(scene, two=scene.rng.random() < 1 / 2)
    scene.others(Update("deals", key, {"owner": "theirs"}))


def _saved_whole(scene: Scene) -> None:
    key = _updated(scene)
    scene.others(Update("deals", key, {"stage": "agent's", "owner": "theirs"}))


def _one_of_two(scene: Scene) -> None:
    scene.others(Update("deals", _updated(scene, two=True), {"stage": "theirs"}))


def _there_and_back(scene: Scene) -> None:
    key = _updated(scene)
    back = Update("deals", key, {"stage": "agent's"})
    scene.others(Update("deals", key, {"stage": "theirs"}), back)


def _there_and_back_elsewhere(scene: Scene) -> None:
    key = _updated(scene, two=scene.rng.random() < 1 / 2)
    back = Update("deals", key, {"owner": scene.was(key)["owner"]})
    scene.others(Update("deals", key, {"owner": "theirs"}), back)


def _there_and_back_beside(scene: Scene) -> None:
    key = _updated(scene)
    writes = [
        Update("deals", key, {"stage": "theirs"}),
        Update("deals", key, {"stage": "agent's"}),
    ]
    writes.insert(scene.rng.randrange(3), Update("deals", key, {"owner": "theirs"}))
    scene.others(*writes)


def _counter(scene: Scene) -> None:
    key = scene.deal()
    scene.agent.append(Add(key, scene.rng.choice((-5, 3, 10))))
    scene.others(*(Add(key, by) for by in scene.rng.sample((1, 4, -2, 20), 2)))


def _counter_there_and_back(scene: Scene) -> None:
    key = _updated(scene, counter=True)
    scene.others(Add(key, 7), Add(key, -7))


def _counter_beside_a_column(scene: Scene) -> None:
    key = _updated(scene, counter=True)
    scene.others(Add(key, 7), Update("deals", key, {"owner": "theirs"}))


def _deleted(scene: Scene) -> None:
    scene.others(Delete("deals", _updated(scene)))


def _deleted_and_made_again(scene: Scene) -> None:
    key = _updated(scene)
    values = {**scene.was(key), "stage": "agent's"}
    if scene.rng.random() < 1 / 2:
        values["owner"] = "theirs"
    scene.others(Delete("deals", key), Insert("deals", values))


def _key_reused(scene: Scene) -> None:
    key = scene.deal()
    scene.agent.append(Delete("deals", key))
    values = scene.was(key) if scene.rng.random() < 1 / 2 else scene.values(key)
    scene.others(Insert("deals", values))


def _key_reused_and_freed(scene: Scene) -> None:
    key = scene.deal()
    scene.agent.append(Delete("deals", key))
    scene.others(Insert("deals", scene.values(key)), Delete("deals", key))


def _agents_row_written(scene: Scene) -> None:
    key = scene.key()
    values = scene.values(key)
    scene.agent.append(Insert("deals", values))
    column = scene.rng.choice(("owner", "stage"))
    there, back = ({column: value} for value in ("theirs", values[column]))
    if scene.rng.random() < 1 / 2:
        scene.others(Update("deals", key, there))
    else:
        scene.others(Update("deals", key, there), Update("deals", key, back))


def _agents_row_made_again(scene: Scene) -> None:
    key = scene.key()
    values = scene.values(key)
    scene.agent.append(Insert("deals", values))
    again = Insert("deals", values if scene.rng.random() < 1 / 2 else scene.values(key))
    scene.others(Delete("deals", key), *[again][: scene.rng.randrange(3)])


def _child_added(scene: Scene) -> None:
    key = scene.key()
    scene.agent.append(Insert("deals", scene.values(key)))
    table = scene.rng.choice(("notes", "tasks", "mails"))
    if scene.rng.random() < 1 / 3:
        scene.agent.append(Insert(table, {"id": scene.key(), "deal": key}))
    scene.others(Insert(table, {"id": scene.key(), "deal": key}))


def _agents_child_written(scene: Scene) -> None:
    deal, child = scene.key(), scene.key()
    table, column = scene.rng.choice((("notes", "body"), ("tasks", "title"), ("mails", "topic")))
    scene.agent += [
        Insert("deals", scene.values(deal)),
        Insert(table, {"id": child, "deal": deal, column: "agent's"}),
    ]
    scene.others(Update(table, child, {column: "theirs"}))


def _key_changed(scene: Scene) -> None:
    scene.others(Update("deals", _updated(scene), {"id": scene.key()}))


def _key_changed_by_agent(scene: Scene) -> None:
    key, new = scene.deal(), scene.key()
    scene.agent.append(Update("deals", key, {"id": new}))
    match scene.rng.randrange(4):
        case 0:
            scene.others(Update("deals", new, {"owner": "theirs"}))
        case 1:
            scene.others(Insert("deals", {**scene.values(key), "code": None}))
        case 2:
            table = scene.rng.choice(("notes", "tasks", "mails"))
            scene.others(Insert(table, {"id": scene.key(), "deal": new}))
        case _:
            scene.others(Delete("deals", new))


def _unique_value_taken(scene: Scene) -> None:
    key = scene.deal()
    code = scene.was(key)["code"]
    if scene.rng.random() < 1 / 2:
        scene.agent.append(Update("deals", key, {"code": f"new {key}"}))
    else:
        scene.agent.append(Delete("deals", key))
    if scene.rng.random() < 1 / 2:
        scene.others(Insert("deals", {**scene.values(scene.key()), "code": code}))
    else:
        scene.others(Update("deals", scene.deal(), {"code": code}))


def _parent_gone(scene: Scene) -> None:
    deal = scene.deal()
    table = scene.rng.choice(("notes", "tasks", "mails"))
    child = scene.child(table, deal)
    if scene.rng.random() < 1 / 2:
        scene.agent.append(Delete(table, child))
    else:
        scene.agent.append(Update(table, child, {"deal": scene.deal()}))
    scene.others(Delete("deals", deal))


def _with_its_children(scene: Scene) -> None:
    """Have the agent delete a deal; what refers to it goes along, or lets go."""
    deal = scene.deal()
    task, mail = scene.child("tasks", deal), scene.child("mails", deal)
    scene.agent.append(Delete("deals", deal))
    match scene.rng.randrange(3):
        case 0:
            scene.others(Insert("tasks", {"id": task, "title": "theirs"}))
        case 1:
            scene.others(Update("mails", mail, {"topic": "theirs"}))
        case _:
            scene.others(Update("mails", mail, {"deal": scene.deal()}))


def _apart(scene: Scene) -> None:
    """Let others write rows that the agent did not write, and nothing else."""
    _updated(scene, counter=True)
    scene.others(Update("deals", scene.deal(), {"stage": "theirs"}))


def _mixed(scene: Scene) -> None:
    """Several kinds at once on rows of their own, their turns shuffled like cards."""
    later: list[Transaction] = []
    for _ in range(scene.rng.randrange(2, 4)):
        scene.later = []
        scene.rng.choice(list(_KINDS.values()))(scene)
        places = sorted(scene.rng.choices(range(len(later) + 1), k=len(scene.later)))
        for shift, (place, transaction) in enumerate(zip(places, scene.later, strict=True)):
            later.insert(place + shift, transaction)
    scene.later = later


_KINDS: dict[str, Callable[[Scene], None]] = {
    "the same column": _same_column,
    "the same value written again": _same_value,
    "the former value put back": _repaired,
    "another column": _other_column,
    "another column, the whole row saved": _saved_whole,
    "one of two columns": _one_of_two,
    "there and back in the same column": _there_and_back,
    "there and back in another column": _there_and_back_elsewhere,
    "there and back beside another column": _there_and_back_beside,
    "a counter": _counter,
    "a counter, there and back": _counter_there_and_back,
    "a counter and another column": _counter_beside_a_column,
    "deleted": _deleted,
    "deleted and made again": _deleted_and_made_again,
    "made where the agent had deleted": _key_reused,
    "made there and deleted again": _key_reused_and_freed,
    "the agent's row written": _agents_row_written,
    "the agent's row deleted or made again": _agents_row_made_again,
    "child of the agent's row": _child_added,
    "the agent's child row written": _agents_child_written,
    "key changed": _key_changed,
    "written after the agent changed the key": _key_changed_by_agent,
    "unique value taken": _unique_value_taken,
    "parent gone": _parent_gone,
    "children of a deleted row": _with_its_children,
    "other rows": _apart,
}


def _anything(scene: Scene) -> None:
    """Random writes by everybody to a few rows, whatever the database would take."""
    rng, world = scene.rng, World()
    first = scene.last_key + 1
    for _ in range(3):
        deal = scene.deal()
        if rng.random() < 1 / 3:
            scene.child(rng.choice(("notes", "tasks", "mails")), deal)
    for insert in scene.before:
        world.apply(SETUP, insert)
    keys = range(first, first + 10)
    scene.last_key = first + 20
    _some(scene, world, AGENT, keys, rng.randrange(1, 5))
    for _ in range(rng.randrange(1, 4)):
        who = scene.someone()
        writes = _some(scene, world, who, keys, rng.randrange(1, 4))
        if writes:
            scene.later.append((Part(who, tuple(writes)),))


def _some(scene: Scene, world: World, who: str, keys: range, count: int) -> list[Write]:
    """Do so many random writes that the database would take; the agent's go to the scene."""
    done: list[Write] = []
    for _ in range(count * 30):
        write = _random_write(scene, world, keys)
        with suppress(Invalid):
            world.apply(who, write)
            done.append(write)
        if len(done) == count:
            break
    if who == AGENT:
        scene.agent += done
    return done


def _random_write(scene: Scene, world: World, keys: range) -> Write:
    rng = scene.rng
    living = sorted(world.living("deals"), key=lambda row: row.key)
    key = rng.choice(living).key if living else keys[0]
    free = rng.choice(keys)
    match rng.randrange(10):
        case 0:
            code = f"c{rng.choice(keys)}"
            return Insert("deals", {**scene.values(free), "code": code})
        case 1:
            return Delete("deals", key)
        case 2:
            return Update("deals", key, {"id": free})
        case 3:
            return Update("deals", key, {"code": rng.choice((None, f"c{rng.choice(keys)}"))})
        case 4 | 5:
            return Add(key, rng.choice((-1, 1, 5)))
        case 6:
            table = rng.choice(("notes", "tasks", "mails"))
            children = sorted(row.key for row in world.living(table))
            match rng.randrange(3):
                case 0 if children:
                    return Delete(table, rng.choice(children))
                case 1 if children:
                    return Update(table, rng.choice(children), {"deal": rng.choice((None, key))})
                case _:
                    return Insert(table, {"id": free, "deal": key})
        case _:
            column, values = rng.choice((("stage", STAGES[:2]), ("owner", OWNERS[:2])))
            return Update("deals", key, {column: rng.choice(values)})


def generate(count: int, seed: int) -> list[History]:
    """Make histories: a third of random writes, a sixth mixed, the others of each kind in turn.

    Args:
        count: how many.
        seed: the same seed makes the same histories.

    """
    rng = random.Random(seed)  # noqa: S311 - lots, not secrets
    histories = []
    names = itertools.cycle(_KINDS)
    for number in range(1, count + 1):
        scene = Scene(rng, number)
        if number % 3 == 0:
            kind = "anything"
            _anything(scene)
        elif number % 6 == 1:
            kind = "mixed"
            _mixed(scene)
            scene.bystanders()
        else:
            kind = next(names)
            _KINDS[kind](scene)
            scene.bystanders()
        histories.append(scene.finish(number, kind))
    return histories
