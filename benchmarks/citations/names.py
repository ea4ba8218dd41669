"""People of many languages."""

import random
from dataclasses import dataclass

from faker import Faker

_LOCALES = {
    "en": ["en_US", "en_GB", "en_IN", "en_AU"],
    "de": ["de_DE", "de_AT"],
    "fr": ["fr_FR", "fr_CA"],
    "es": ["es_ES", "es_MX"],
    "it": ["it_IT"],
    "pt": ["pt_BR", "pt_PT"],
    "other": [
        "nl_NL",
        "sv_SE",
        "da_DK",
        "no_NO",
        "fi_FI",
        "pl_PL",
        "cs_CZ",
        "hu_HU",
        "ro_RO",
        "tr_TR",
        "hr_HR",
        "vi_VN",
    ],
}
_PINYIN = ["Wang", "Li", "Zhang", "Liu", "Chen", "Yang", "Huang", "Zhao", "Wu", "Zhou", "Xu", "Sun", "Ma", "Zhu", "Hu", "Guo", "He", "Lin", "Gao", "Luo", "Zheng", "Liang", "Xie", "Tang", "Feng", "Kim", "Lee", "Park", "Choi", "Tanaka", "Suzuki", "Sato", "Watanabe", "Ito", "Nakamura", "Kobayashi", "Singh", "Kumar", "Gupta", "Nguyen", "Tran"]  # fmt: skip
_PINYIN_GIVEN = ["Wei", "Jun", "Ming", "Xiaoming", "Yu-Ting", "Hui", "Jing", "Lei", "Yan", "Bo", "Jie", "Hao", "Zhi-Hua", "Xin", "Feng", "Min-Jung", "Sung", "Hiroshi", "Kenji", "Yuki", "Takeshi", "Akira", "Raj", "Anil", "Priya", "Thanh", "Minh"]  # fmt: skip
_PARTICLES = [
    "van",
    "van der",
    "de",
    "von",
    "de la",
    "di",
    "da",
    "dos",
    "du",
    "Le",
    "O'",
    "Mc",
    "Van",
    "De",
    "el",
]
_SUFFIXES = ["Jr.", "Jr", "III", "II"]


@dataclass(frozen=True)
class Name:
    """A person; an organisation has no given names."""

    family: str
    given: tuple[str, ...]  # each of the given names
    suffix: str = ""


class Names:
    """People of many languages, seeded."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._fakers = {
            locale: Faker(locale) for locales in _LOCALES.values() for locale in locales
        }
        for number, faker in enumerate(self._fakers.values()):
            faker.seed_instance(rng.randrange(2**32) + number)

    def one(self, language: str) -> Name:
        """Somebody, mostly with a name of that language."""
        rng = self._rng
        roll = rng.random()
        if roll < 0.15:
            return Name(rng.choice(_PINYIN), (rng.choice(_PINYIN_GIVEN),))
        pool = _LOCALES[language] if roll < 0.65 else _LOCALES[rng.choice(list(_LOCALES))]
        faker = self._fakers[rng.choice(pool)]
        family, given = faker.last_name(), [faker.first_name().split()[0]]
        if rng.random() < 0.45:
            given.append(
                rng.choice([faker.first_name().split()[0], rng.choice("ABCDEFGHJKLMPRSTW") + "."])
            )
        if rng.random() < 0.06:
            given[0] = f"{given[0]}-{faker.first_name().split()[0]}"
        if rng.random() < 0.07:
            particle = rng.choice(_PARTICLES)
            family = particle + family if particle in ("O'", "Mc") else f"{particle} {family}"
        if rng.random() < 0.05 and " " not in family:
            family = f"{family}-{faker.last_name().split()[-1]}"
        return Name(family, tuple(given), rng.choice(_SUFFIXES) if rng.random() < 0.015 else "")

    def town(self, language: str) -> str:
        """A town in a country of that language."""
        locales = _LOCALES.get(language, _LOCALES["other"])
        return str(self._fakers[self._rng.choice(locales)].city())

    def several(self, language: str) -> list[Name]:
        """The authors of a work: one to twelve."""
        count = self._rng.choices([1, 2, 3, 4, 5, 6, 8, 12], [32, 27, 17, 9, 5, 4, 4, 2])[0]
        return [self.one(language) for _ in range(count)]
