"""Sentences in which one adjective says what "it" is: the data of the task ``pronouns``.

    The trophy would not fit in the box because it was too big.    it = the trophy
    The trophy would not fit in the box because it was too small.  it = the box

Written for this package after the idea of Levesque et al. (2012); no sentence is from a published test set.
In every frame both sentences make sense, and each only with one noun as "it". Not ruled out: that adjective
and noun go together by themselves (ropes are thin, rocks heavy), so that a model could answer without
reading the sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from interp.errors import InterpError


@dataclass(frozen=True)
class Frame:
    """A sentence with two nouns, and an adjective for each.

    Attributes:
        first, second: the nouns, in the order in which they stand.
        sentence: with ``{first}``, ``{second}`` and, at its end, "it was too {adj}." or "it was so {adj}.".
        of_first, of_second: the adjective with which "it" is the first noun, the second.

    Raises:
        InterpError: a sentence of another shape.
    """

    first: str
    second: str
    sentence: str
    of_first: str
    of_second: str

    def __post_init__(self) -> None:
        marks = re.findall(r"{(\w*)}", self.sentence)
        end = re.search(r" it was (too|so) {adj}\.$", self.sentence)
        if marks != ["first", "second", "adj"] or end is None:
            raise InterpError(
                f"frame {self.sentence!r}: expected {{first}}, {{second}} and an end like "
                "'because it was too {adj}.' or '… it was so {adj}.'"
            )

    @property
    def template(self) -> str:
        """The sentence with a gap for its adjective."""
        return self.told("_")

    def told(self, adjective: str) -> str:
        """The sentence with this adjective."""
        return self.sentence.format(first=self.first, second=self.second, adj=adjective)

    def question(self, adjective: str) -> str:
        """What a noun of the sentence answers: "What was too small? The"."""
        return f"What was {self.told(adjective).rpartition('it was ')[2][:-1]}? The"


FRAMES = tuple(
    Frame(first, second, f"The {{first}} {relation} {{adj}}.", of_first, of_second)
    for first, second, relation, of_first, of_second in (
        # too big, too small, too wide, too narrow: into, through, around, over
        ("trophy", "box", "would not fit in the {second} because it was too", "big", "small"),
        ("table", "door", "would not go through the {second} because it was too", "wide", "narrow"),
        ("truck", "bridge", "could not pass under the {second} because it was too", "tall", "low"),
        ("mouse", "hole", "could not slip through the {second} because it was too", "fat", "narrow"),
        ("key", "lock", "would not go into the {second} because it was too", "thick", "narrow"),
        ("ring", "finger", "would not slide over the {second} because it was too", "small", "fat"),
        ("hat", "head", "kept slipping off the {second} because it was too", "big", "small"),
        ("book", "shelf", "stuck out from the {second} because it was too", "wide", "narrow"),
        ("train", "platform", "did not fit along the {second} because it was too", "long", "short"),
        ("ship", "river", "could not sail up the {second} because it was too", "big", "shallow"),
        ("plane", "road", "could not land on the {second} because it was too", "large", "narrow"),
        ("frame", "photo", "would not go around the {second} because it was too", "small", "big"),
        ("paper", "gift", "could not be wrapped around the {second} because it was too", "small", "big"),
        ("chain", "tree", "could not be tied around the {second} because it was too", "short", "thick"),
        ("bottle", "bag", "was packed inside the {second} because it was so", "small", "big"),
        ("file", "disk", "could not be saved on the {second} because it was too", "large", "full"),
        # covering, hiding, lighting
        ("blanket", "bed", "did not cover the {second} because it was too", "small", "big"),
        ("tree", "house", "hid the {second} because it was so", "big", "small"),
        ("cup", "pot", "was hidden behind the {second} because it was so", "small", "big"),
        ("curtain", "room", "could not darken the {second} because it was too", "thin", "bright"),
        ("paint", "stain", "did not cover up the {second} because it was too", "thin", "dark"),
        ("lamp", "garden", "did not light up the {second} because it was too", "dim", "large"),
        ("sun", "cloud", "shone through the {second} because it was so", "bright", "thin"),
        ("star", "moon", "could not be seen beside the {second} because it was too", "faint", "bright"),
        ("ink", "page", "did not show on the {second} because it was too", "pale", "dark"),
        # reaching, climbing
        ("ladder", "roof", "did not reach the {second} because it was too", "short", "high"),
        ("crane", "tower", "could not reach over the {second} because it was too", "short", "tall"),
        ("cable", "desk", "did not stretch to the {second} because it was too", "short", "far"),
        ("pole", "lake", "did not touch the bottom of the {second} because it was too", "short", "deep"),
        ("cat", "table", "could not jump onto the {second} because it was too", "fat", "high"),
        ("car", "hill", "could not climb the {second} because it was too", "weak", "steep"),
        # carrying, lifting, pulling, holding
        ("bench", "statue", "could not carry the {second} because it was too", "weak", "heavy"),
        ("rope", "piano", "could not hold the {second} because it was too", "thin", "heavy"),
        ("horse", "wagon", "could not pull the {second} because it was too", "weak", "heavy"),
        ("robot", "rock", "could not lift the {second} because it was too", "small", "big"),
        ("magnet", "hammer", "could not pick up the {second} because it was too", "small", "heavy"),
        ("wind", "boat", "could not move the {second} because it was too", "weak", "heavy"),
        ("ice", "bear", "broke under the {second} because it was so", "thin", "heavy"),
        ("roof", "snow", "fell in under the {second} because it was so", "weak", "deep"),
        # stopping, blocking, standing up to
        ("fence", "deer", "could not keep out the {second} because it was too", "low", "strong"),
        ("dam", "river", "could not hold back the {second} because it was too", "weak", "strong"),
        ("tent", "storm", "did not stand up to the {second} because it was too", "old", "strong"),
        ("candle", "wind", "was blown out by the {second} because it was so", "small", "strong"),
        ("fish", "net", "broke out of the {second} because it was so", "strong", "weak"),
        # cutting, breaking, warming
        ("knife", "bread", "could not cut the {second} because it was too", "dull", "hard"),
        ("nail", "wall", "could not be driven into the {second} because it was too", "soft", "hard"),
        ("hammer", "log", "could not split the {second} because it was too", "light", "hard"),
        ("stone", "glass", "broke the {second} because it was so", "heavy", "thin"),
        ("bullet", "door", "did not go right through the {second} because it was too", "slow", "thick"),
        ("fork", "plate", "scratched the {second} because it was so", "sharp", "soft"),
        ("fire", "ice", "could not melt the {second} because it was too", "small", "thick"),
        ("stove", "hall", "could not warm the {second} because it was too", "small", "large"),
        ("pipe", "pool", "could not fill the {second} in one day because it was too", "narrow", "deep"),
        # catching, overtaking, fleeing, eating
        ("boat", "ship", "could not catch the {second} because it was too", "slow", "fast"),
        ("fox", "rabbit", "caught the {second} because it was so", "fast", "slow"),
        ("bus", "car", "was overtaken by the {second} because it was so", "slow", "fast"),
        ("camera", "bird", "could not follow the {second} because it was too", "slow", "fast"),
        ("dog", "bear", "ran away from the {second} because it was so", "small", "big"),
        ("lion", "deer", "ate the {second} because it was so", "hungry", "slow"),
        ("sheep", "stream", "drank from the {second} because it was so", "thirsty", "clean"),
        # hearing
        ("drum", "bell", "drowned out the {second} because it was so", "loud", "quiet"),
        ("radio", "engine", "could not be heard over the {second} because it was too", "quiet", "loud"),
        # paying, losing
        ("army", "enemy", "lost to the {second} because it was so", "small", "large"),
        ("shop", "market", "lost against the {second} because it was so", "expensive", "cheap"),
        ("company", "hotel", "bought the {second} because it was so", "rich", "cheap"),
        ("village", "castle", "could not pay for the {second} because it was too", "poor", "expensive"),
    )
)  # fmt: skip
