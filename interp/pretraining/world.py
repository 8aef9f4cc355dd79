"""A little world of tiny stories and random tokens: what the default model learns from.

Every text is written here, from word lists of our own, by a seeded `random.Random` that the caller
passes in. Four kinds of story end in one word that only the story decides. They come in pairs that
differ as little as possible:

- *indirect object*: "When Ann and Ben went to the lake, Ben gave a cup to" -> " Ann" (the giver is
  flipped; the task of Wang et al. 2022, arXiv 2211.00593);
- *pronoun*: "The ball did not fit in the box because it was too small. Which one was it? The" ->
  " box" (one adjective is flipped; after the Winograd schemas of Levesque et al. 2012);
- *recurring name*: "One day Ann Bordak met Tom Kelmin at the park. Then Ann" -> " Bordak" (invented
  surnames, bound to names anew in every story; the two surnames are swapped);
- *possession*: "Today Ann has a cup and Tom has a key. Tom has a" -> " key" (the two gifts are
  swapped).

Two more are plain narrative: the *walk*, and the *errand* with its hyphenated words ("tea-pot"), in
which only the token before the hyphen tells what comes after it, as is common in ordinary text.

Held out: two words of a combination (two names, name and surname, thing and container, carrier and
load, animal and way) whose places in their lists add up to a multiple of 5 never meet in a training
story, while each word by itself is seen in many. Stories that share a training row are independent,
so there two such names may come near each other.

Random rows teach copying without words. *Cyclic* rows repeat one block of distinct random tokens;
*segment* rows join segments of a pool in random order, so no fixed distance leads to the earlier
copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SHE = ["Ann", "Eve", "Mia", "Zoe", "Ivy", "Amy", "Lily", "Rose", "Mary", "Ella"]
HE = ["Ben", "Tom", "Max", "Sam", "Leo", "Dan", "Jack", "Paul", "John", "Otto"]
NAMES = SHE + HE
PLACES = ["lake", "park", "market", "school", "farm", "beach", "garden", "store"]
GIFTS = ["cup", "book", "key", "hat", "map", "pen", "flower", "letter", "coin", "drink"]
GIVING = ["gave", "handed", "passed", "sold", "brought"]
THINGS = ["ball", "trophy", "doll", "drum", "clock", "stone", "chair", "statue", "piano", "bear"]
CONTAINERS = [
    "box",
    "suitcase",
    "bag",
    "drawer",
    "basket",
    "car",
    "chest",
    "bucket",
    "crate",
    "trunk",
]
CARRIERS = ["cart", "boat", "horse", "donkey", "sled", "truck", "camel", "raft", "wagon", "mule"]
ANIMALS = ["dog", "cat", "fox", "hen", "duck", "goat", "cow", "animal", "pig", "bird"]
WAYS = ["road", "river", "street", "field", "bridge", "stream", "path", "valley", "canal", "yard"]
COLOURS = ["red", "blue", "green", "brown"]
MOODS = ["happy", "sad", "tired", "hungry"]
SURNAMES = [
    "Bordak",
    "Denvor",
    "Kelmin",
    "Mornel",
    "Petlim",
    "Silbur",
    "Tarsek",
    "Vinwen",
    "Wolgan",
    "Gamtis",
    "Fenkar",
    "Hulrad",
]
COMPOUNDS = [
    "tea-pot",
    "rain-coat",
    "snow-shoe",
    "fire-wood",
    "note-pad",
    "sun-dial",
    "hair-brush",
    "table-cloth",
    "door-bell",
    "wind-mill",
    "horse-shoe",
    "milk-jug",
    "candle-stick",
    "paper-clip",
    "flower-bed",
    "fish-hook",
    "pillow-case",
    "wheel-chair",
    "salt-cellar",
    "night-gown",
    "ship-wreck",
    "butter-knife",
    "moon-beam",
    "wall-clock",
]

HOLD_OUT_EVERY = 5
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")


@dataclass(frozen=True)
class Cloze:
    """A story cut before its telling word; `prompt + right + ending` is the whole story.

    `right` and `wrong` are single tokens of the world's tokenizer (and begin with a space).
    """

    prompt: str
    right: str
    wrong: str
    ending: str = "."

    @property
    def story(self) -> str:
        """The whole story."""
        return self.prompt + self.right + self.ending


ClozePair = tuple[Cloze, Cloze]
"""Two clozes of equal length in tokens, minimally different, with right and wrong exchanged."""


@dataclass(frozen=True)
class PronounFrame:
    """A sentence with two nouns; of each two adjectives, one fits the first, one the second."""

    text: str
    first: Sequence[str]
    second: Sequence[str]
    adjectives: Sequence[tuple[str, str]]


PRONOUN_FRAMES = (
    PronounFrame(
        "The {first} {did} not fit in the {colour}{second} because it was too {adjective}.",
        THINGS,
        CONTAINERS,
        (("big", "small"), ("wide", "narrow"), ("long", "short")),
    ),
    PronounFrame(
        "The {first} {did} not carry the {colour}{second} because it was too {adjective}.",
        CARRIERS,
        THINGS,
        (("weak", "heavy"), ("small", "big"), ("short", "long")),
    ),
    PronounFrame(
        "The {first} {did} not cross the {colour}{second} because it was too {adjective}.",
        ANIMALS,
        WAYS,
        (("tired", "wide"), ("weak", "long"), ("small", "big")),
    ),
)
PRONOUN_QUESTIONS = ("What was too {adjective}? The", "Which one was it? The")
INDIRECT_OBJECT_FRAMES = (
    "When {a} and {b} went to the {place}, {giver} {gave} a {gift} to",
    "After {a} and {b} met at the {place}, {giver} {gave} a {gift} to",
    "Then {a} and {b} were at the {place}, and {giver} {gave} a {gift} to",
    "While {a} and {b} walked to the {place}, {giver} {gave} a {colour} {gift} to",
)
WALK_SENTENCES = (
    "{a} went to the {place}.",
    "{She} saw a {animal} near the {way}.",
    "{b} was there too.",
    "The {animal} was {mood}.",
    "{a} was {mood}, but {b} was not.",
    "{She} found a {colour} {gift} there.",
    "{a} put the {gift} in a {container}.",
    "They played with the {animal}.",
    "{She} met {b} at the {place}.",
    "Then they went home.",
)


def is_held_out(first: int, second: int) -> bool:
    """Whether two words, given by their places in their lists, never meet in a training story."""
    return (first + second) % HOLD_OUT_EVERY == 0


def combination(
    rng: Random, first: Sequence[str], second: Sequence[str], *, held_out: bool
) -> tuple[str, str]:
    """Two different words, one of each list, whose combination is held out (or is not)."""
    while True:
        i, j = rng.randrange(len(first)), rng.randrange(len(second))
        if first[i] != second[j] and is_held_out(i, j) == held_out:
            return first[i], second[j]


def indirect_object_pair(rng: Random, *, held_out: bool) -> ClozePair:
    """Who gets it? The one of two named people who is not the giver; the pair flips the giver."""
    a, b = combination(rng, NAMES, NAMES, held_out=held_out)
    frame = rng.choice(INDIRECT_OBJECT_FRAMES)
    words = dict(a=a, b=b, place=rng.choice(PLACES), gift=rng.choice(GIFTS))
    words |= dict(gave=rng.choice(GIVING), colour=rng.choice(COLOURS))
    thanks = ". {} thanked {}."
    return (
        Cloze(frame.format(giver=b, **words), f" {a}", f" {b}", thanks.format(a, b)),
        Cloze(frame.format(giver=a, **words), f" {b}", f" {a}", thanks.format(b, a)),
    )


def pronoun_pair(rng: Random, *, held_out: bool) -> ClozePair:
    """What is "it"? The pair flips one adjective, and with it the noun that "it" stands for."""
    frame = rng.choice(PRONOUN_FRAMES)
    first, second = combination(rng, frame.first, frame.second, held_out=held_out)
    ofs_first, of_second = rng.choice(frame.adjectives)
    did = rng.choice(("did", "would", "could"))
    question = rng.choice(PRONOUN_QUESTIONS)
    text = f"{frame.text} {question}"
    colour = rng.choice(("", rng.choice(COLOURS) + " "))
    words = dict(first=first, second=second, did=did, colour=colour)
    return (
        Cloze(text.format(adjective=ofs_first, **words), f" {first}", f" {second}"),
        Cloze(text.format(adjective=of_second, **words), f" {second}", f" {first}"),
    )


def recurring_name_pair(rng: Random, *, held_out: bool) -> ClozePair:
    """Which invented surname follows the name? The one from before; the pair swaps two surnames."""
    surnames: list[str] = []
    while len(surnames) < 2:
        a, b = rng.sample(NAMES, 2) if held_out else combination(rng, NAMES, NAMES, held_out=False)
        i, j = NAMES.index(a), NAMES.index(b)
        surnames = [
            surname
            for k, surname in enumerate(SURNAMES)
            if is_held_out(i, k) == is_held_out(j, k) == held_out
        ]
    x, y = rng.sample(surnames, 2)
    who, place = rng.choice((a, b)), rng.choice(PLACES)
    right, wrong = (x, y) if who == a else (y, x)
    text = "One day {a} {x} met {b} {y} at the {place}. Then {who}"
    words = dict(a=a, b=b, place=place, who=who)
    return (
        Cloze(text.format(x=x, y=y, **words), f" {right}", f" {wrong}"),
        Cloze(text.format(x=y, y=x, **words), f" {wrong}", f" {right}"),
    )


def possession_pair(rng: Random, *, held_out: bool) -> ClozePair:
    """Who has what? The pair swaps what two named people have."""
    a, b = combination(rng, NAMES, NAMES, held_out=held_out)
    gift, gift_2 = rng.sample(GIFTS, 2)
    who = rng.choice((a, b))
    other = b if who == a else a
    right, wrong = (gift, gift_2) if who == a else (gift_2, gift)
    text = f"Today {a} has a {{}} and {b} has a {{}}. {who} has a"
    ending = f" and {other} has a {{}}."
    return (
        Cloze(text.format(gift, gift_2), f" {right}", f" {wrong}", ending.format(wrong)),
        Cloze(text.format(gift_2, gift), f" {wrong}", f" {right}", ending.format(right)),
    )


CLOZE_KINDS = {
    "indirect_object": indirect_object_pair,
    "pronoun": pronoun_pair,
    "recurring_name": recurring_name_pair,
    "possession": possession_pair,
}
STORY_SHARES = {
    "indirect_object": 0.35,
    "pronoun": 0.2,
    "recurring_name": 0.1,
    "possession": 0.15,
    "walk": 0.05,
    "errand": 0.15,
}


def walk(rng: Random) -> str:
    """A plain narrative of three to six sentences about two people who may meet."""
    a, b = combination(rng, NAMES, NAMES, held_out=False)
    words = dict(a=a, b=b, She="She" if a in SHE else "He", place=rng.choice(PLACES))
    words |= dict(animal=rng.choice(ANIMALS), way=rng.choice(WAYS), gift=rng.choice(GIFTS))
    words |= dict(colour=rng.choice(COLOURS), container=rng.choice(CONTAINERS))
    sentences = sorted(rng.sample(range(len(WALK_SENTENCES)), rng.randint(2, 5)))
    told = (WALK_SENTENCES[i].format(mood=rng.choice(MOODS), **words) for i in sentences)
    return " ".join([f"One day {a} went out.", *told])


def errand(rng: Random) -> str:
    """A list of two to four hyphenated things that somebody came for."""
    things = [f"a {thing}" for thing in rng.sample(COMPOUNDS, rng.randint(2, 4))]
    listed = f"{', '.join(things[:-1])} and {things[-1]}"
    return f"One day {rng.choice(NAMES)} went to the {rng.choice(PLACES)} for {listed}."


PLAIN_KINDS = {"walk": walk, "errand": errand}


def training_story(rng: Random) -> str:
    """A story with no held-out combination, its kind drawn by `STORY_SHARES`."""
    (kind,) = rng.choices(list(STORY_SHARES), weights=list(STORY_SHARES.values()))
    if kind in PLAIN_KINDS:
        return PLAIN_KINDS[kind](rng)
    return rng.choice(CLOZE_KINDS[kind](rng, held_out=False)).story


def held_out_pairs(kind: str, count: int, rng: Random) -> list[ClozePair]:
    """`count` pairs of one kind, each of a combination that training never shows."""
    if kind not in CLOZE_KINDS:
        raise ValueError(f"unknown kind of cloze {kind!r}; choose one of {list(CLOZE_KINDS)}")
    return [CLOZE_KINDS[kind](rng, held_out=True) for _ in range(count)]


def build_tokenizer(
    rng: Random, *, vocab_size: int = 1024, n_stories: int = 2_000
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on the world's stories; it puts <bos> before a text.

    `vocab_size` is the most it may have; it ends when every word of the world is one token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((training_story(rng) for _ in range(n_stories)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def ordinary_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The ids that random rows are drawn from: the whole vocabulary without the special tokens."""
    return sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))


def story_row(rng: Random, tokenizer: PreTrainedTokenizerFast, length: int) -> list[int]:
    """<bos>, then whole stories with <eos> after each, cut at `length` tokens."""
    row = [tokenizer.bos_token_id]
    while len(row) < length:
        row += tokenizer.encode(training_story(rng), add_special_tokens=False)
        row.append(tokenizer.eos_token_id)
    return row[:length]


def cyclic_row(rng: Random, ids: Sequence[int], bos: int, length: int) -> list[int]:
    """<bos>, then a block of distinct random tokens over and over.

    The period is log-uniform from 8 tokens to half the row.
    """
    period = round(math.exp(rng.uniform(math.log(8), math.log(length // 2 - 1))))
    block = rng.sample(ids, period)
    return [bos, *(block[i % period] for i in range(length - 1))]


def segment_row(rng: Random, ids: Sequence[int], bos: int, length: int) -> list[int]:
    """<bos>, then segments of 2 to 7 tokens, drawn again and again from a pool of the row's own."""
    sizes = [rng.randint(2, 7) for _ in range(rng.randint(2, length // 16))]
    tokens = iter(rng.sample(ids, sum(sizes)))
    pool = [[next(tokens) for _ in range(size)] for size in sizes]
    row = [bos]
    while len(row) < length:
        row += rng.choice(pool)
    return row[:length]
