"""Words that say nothing of a text's subject, in the languages that documents come in.

Normalised as `services.pipeline.text.plain_text.words` does it: case-folded, without accents.
"""

from __future__ import annotations

from collections.abc import Iterable

_ENGLISH = """
a about above after again all also although always am among an and another any are as at be
because been before being below between both but by can cannot could did do does doing done down
during each either else even ever every few for from further get had has have having he her here
hers him his how however i if in into is it its itself just less like made make many may me might
more most much must my near neither no nor not now of off often on once one only onto or other our
out over own per rather same she should since so some such than that the their them then there
therefore these they this those though through thus to together too toward two under until up upon
us use used using very was way we well were what when where whether which while who whom whose why
will with within without would yet you your
"""

_GERMAN = """
aber alle allem allen aller alles als also am an ander andere anderen anderer auch auf aus bei
beim bereits bis da dabei dadurch dafur damit dann daran darauf das dass davon dazu dem den denn
der des deshalb die dies diese diesem diesen dieser dieses doch dort du durch ein eine einem einen
einer eines einige er es etwa etwas fur gegen hat hatte hatten haben hier hin hinter ich ihm ihn
ihr ihre ihrem ihren ihrer im immer in indem ins ist ja jede jedem jeden jeder jedes jedoch jene
kann kein keine keinen konnen konnte man mehr mit muss mussen nach nicht nichts noch nun nur ob
oder ohne schon sehr sein seine seinem seinen seiner seit sich sie sind so sobald solche sondern
sowie uber um und uns unter viel viele vom von vor wahrend war waren was weil welche welcher wenn
wer werden wie wieder wir wird wo wurde wurden zu zum zur zwar zwischen
"""

_FRENCH = """
ainsi alors apres au aucun aussi autre aux avant avec avoir car ce cela ces cet cette ceux chaque
comme comment contre dans de des depuis deux donc dont du elle elles en encore entre est et
etaient etait ete etre eux fait fois font il ils je la le les leur leurs lors lorsque lui mais
meme moins ne ni nos notre nous on ont ou par pas pendant peu peut plus plusieurs pour quand que
quel quelle qui sa sans se selon sera ses si son sont sous sur tandis tant te tous tout toute
toutes tres tu un une vers vous
"""

_SPANISH = """
al algo ante antes asi aunque cada como con contra cual cuando del desde donde dos durante el ella
ellas ellos era eran es esa ese eso esta estaba estas este esto estos fue fueron ha hace hacia han
hasta hay la las le les lo los mas me mientras mismo mucho muy nada ni no nos o otra otras otro
otros para pero poco por porque pues que quien se sea segun ser si sido sin sobre solo son su sus
tambien tan tanto tiene todo todos tras un una unas uno unos y ya
"""

_ARABIC = """
في من على الى ان هذا هذه ذلك تلك التي الذي الذين ما لا لم لن قد كان كانت يكون هو هي هم كما مع بعد
قبل عند بين حتى ثم او و كل بعض غير حيث اذا لكن منذ اي به بها له لها فيه فيها منه منها
"""

_RUSSIAN = """
а без был была были было быть в вам вас весь во вот все всего вы где да для до его ее если есть
еще же за из или им их к как ко когда кто ли либо мне может мы на над надо не него нее нет ни них
но о об однако он она они оно от очень по под при с со так также такои там те тем то того тои
только том ты у уже хотя чего чеи чем что чтобы эта эти это этого этом этот я
"""

STOP_WORDS_BY_LANGUAGE = {
    "english": frozenset(_ENGLISH.split()),
    "german": frozenset(_GERMAN.split()),
    "french": frozenset(_FRENCH.split()),
    "spanish": frozenset(_SPANISH.split()),
    "arabic": frozenset(_ARABIC.split()),
    "russian": frozenset(_RUSSIAN.split()),
}
"""By the languages' names in English, in lower case."""
_CONTENT_WORDS_IN_ENGLISH = """
ante car comment con den die dos encore era fur han hat hay man mas mit nun par pendant plus pour
sans sea sera sin solo son sur tout vers war
"""
"""Stop words of other languages that say something in English (`car`, `sea`, `war`). They are
removed only from a text in their language."""
_MIN_STOP_WORDS = 2
"""Fewest different stop words by which a language is recognised: a single one may be an ordinary
word of another language, as the Spanish stop word `sea` is in English."""


def languages_of(words: Iterable[str]) -> frozenset[str]:
    """Return the languages with the most stop words among these words: several if they are equal,
    none if there are fewer than _MIN_STOP_WORDS."""
    distinct = frozenset(words)
    counts = {
        name: len(stop_words & distinct) for name, stop_words in STOP_WORDS_BY_LANGUAGE.items()
    }
    highest_count = max(counts.values())
    return frozenset(name for name in counts if counts[name] == highest_count >= _MIN_STOP_WORDS)


def stop_words_among(words: Iterable[str]) -> frozenset[str]:
    """Return those of a text's words that say nothing of its subject: the stop words of its
    language. In English, and where the language is not recognised, also those of other languages
    that say nothing in English."""
    distinct = frozenset(words)
    languages = languages_of(distinct)
    if not languages or "english" in languages:
        return distinct & _ENGLISH_OR_UNKNOWN
    return distinct & frozenset[str]().union(*(STOP_WORDS_BY_LANGUAGE[each] for each in languages))


_ENGLISH_OR_UNKNOWN = STOP_WORDS_BY_LANGUAGE["english"] | (
    frozenset[str]().union(*STOP_WORDS_BY_LANGUAGE.values())
    - frozenset(_CONTENT_WORDS_IN_ENGLISH.split())
)
