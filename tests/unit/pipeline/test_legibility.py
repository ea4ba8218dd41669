"""Unreadable text is distinguished from text in any language, and from code and numbers."""

from __future__ import annotations

import random

import pytest

from switchyard.services.pipeline.text.layout import Line
from switchyard.services.pipeline.text.legibility import is_gibberish, is_unreadable, mark_controls
from switchyard.services.pipeline.text.plain_text import clean

ENGLISH = (
    "The keeper of the light climbed the stairs every evening. He trimmed the wick and filled the "
    "lamp, and wrote down the wind. In winter the waves reached the gallery, and the whole tower "
    "trembled, but the flame behind the glass never once went out in all of those years. "
)
RUSSIAN = "Смотритель маяка каждый вечер поднимался по лестнице и записывал ветер и волны. " * 3
ARABIC = "كان حارس المنارة يصعد الدرج كل مساء ويملأ المصباح ويكتب اتجاه الريح والأمواج. " * 3
CHINESE = "灯塔的看守人每天晚上都要爬上楼梯，给灯添油，并记下风向。冬天的海浪一直打到走廊。" * 4
TRADITIONAL = "燈塔的看守人每天晚上都要爬上樓梯，給燈添油，並記下風向。冬天的海浪一直打到走廊。" * 4
JAPANESE = (
    "灯台守は毎晩階段を登り、ランプに油を注ぎ、風向きを書き留めた。冬の波は回廊に達した。" * 4
)
KOREAN = "등대지기는 매일 저녁 계단을 올라 등불에 기름을 채우고 바람의 방향을 적어 두었다. " * 4
READABLE = {
    "English": ENGLISH,
    "German": "Der Leuchtturmwärter stieg jeden Abend die Treppe hinauf, schnitt den Docht und "
    "schrieb den Wind auf. Im Winter reichten die Wellen bis zur Galerie des Turms. " * 2,
    "Czech": "Strážce majáku každý večer vystoupal po schodech, přistřihl knot a zapsal vítr. "
    "V zimě vlny dosahovaly až na ochoz, ale plamen za sklem nikdy nezhasl. " * 2,
    "Polish": "Latarnik co wieczór wchodził po schodach, przycinał knot i zapisywał wiatr. "
    "Zimą fale sięgały galerii, lecz płomień za szybą nigdy nie zgasł. " * 2,
    "Welsh": "Dringodd ceidwad y goleudy y grisiau bob nos, a llenwodd y lamp, ac ysgrifennodd "
    "gyfeiriad y gwynt yn y llyfr mawr. Yn y gaeaf cyrhaeddodd y tonnau yr oriel. " * 2,
    "Finnish": "Majakanvartija kiipesi portaat joka ilta, täytti lampun ja kirjoitti tuulen. "
    "Talvella aallot ylsivät parvekkeelle, mutta liekki ei koskaan sammunut. " * 2,
    "Vietnamese": "Người gác hải đăng leo lên cầu thang mỗi buổi tối, đổ đầy đèn và ghi lại gió. "
    "Vào mùa đông những con sóng chạm tới hành lang của ngọn tháp. " * 2,
    "Turkish": "Fener bekçisi her akşam merdivenleri çıkar, fitili düzeltir ve rüzgârı yazardı. "
    "Kışın dalgalar galeriye ulaşırdı ama camın ardındaki alev hiç sönmedi. " * 2,
    "Russian": RUSSIAN,
    "Arabic": ARABIC,
    "Hebrew": "שומר המגדלור טיפס במדרגות בכל ערב, מילא את המנורה ורשם את הרוח. " * 3,
    "Thai": "ผู้ดูแลประภาคารปีนบันไดทุกเย็นและจดบันทึกทิศทางลมลงในสมุดเล่มใหญ่ " * 3,
    "Hindi": "प्रकाशस्तंभ का रखवाला हर शाम सीढ़ियाँ चढ़ता था और हवा की दिशा लिखता था। " * 3,
    "Chinese": CHINESE,
    "traditional Chinese": TRADITIONAL,
    "Japanese": JAPANESE,
    "Korean": KOREAN,
    "formulas": "∀ε>0 ∃δ>0: |x−a|<δ ⇒ |f(x)−L|<ε, ∑ᵢ αᵢβᵢ = ∫ 𝑓(𝑥)𝑑𝑥, x∈ℝⁿ, λ₁≤λ₂, αx+βy≡γ mod "
    * 3,
    "code": "for (size_t i = 0; i < strlen(ptr); ++i) { if (!isxdigit(buf[i])) return -EINVAL; "
    "std::getLine(cfgStr, parseHdrCnt); } const maxRetryCount = getItemByKey(dbConn, strId); " * 2,
    "numbers": "1.25 3.50 9,999.00 2021-03-31 0x7fff 12:45 99 % 42 7 " * 8,
    "a sequence": "ACGTTGCAACGTAGCTAGCTAACGTCGATCGATTAGC " * 8,
    "a short line": "NYPA Xkcd Gdns",
}


def lines_of(text: str) -> list[Line]:
    pieces = [text[start : start + 60] for start in range(0, len(text), 60)]
    return [Line(50, 50 + 12 * n, 500, 60 + 12 * n, piece, 10) for n, piece in enumerate(pieces)]


def shift_letters(text: str, by: int) -> str:
    """Return the text as read from a font without a ToUnicode map: each character is shifted by the
    same number."""
    return "".join(chr(ord(char) + by) if " " <= char < "\x7f" else char for char in text)


def pick_characters(first: int, last: int) -> str:
    rng = random.Random(3)
    return "".join(chr(rng.randrange(first, last)) for _ in range(400))


@pytest.mark.parametrize("name", READABLE)
def test_a_text_of_any_language_can_be_read(name: str):
    assert not is_unreadable(lines_of(READABLE[name]))


LONG_ENGLISH = (
    ENGLISH + "On the mainland a baker rose at three. Her oven was older than the street, and the "
    "first loaves were for the fishermen. She knew each of them by the sound of his boots, and "
    "which of them would not come back from the autumn storms when the boats were counted. "
)
LONG_RUSSIAN = (
    RUSSIAN[: len(RUSSIAN) // 3]
    + "Зимой волны доходили до самой галереи, и вся башня дрожала, но пламя за толстым стеклом ни "
    "разу не погасло за все эти годы. На берегу пекарь вставал в три часа ночи: первые булки "
    "предназначались рыбакам, и каждого из них он узнавал по звуку шагов. Осенью многие лодки "
    "не возвращались домой, и тогда жители деревни собирались у причала и ждали рассвета. "
)
GREEK = (
    "Ο φύλακας του φάρου ανέβαινε κάθε βράδυ τη σκάλα, γέμιζε τη λάμπα και έγραφε τον άνεμο στο "
    "μεγάλο βιβλίο. Τον χειμώνα τα κύματα έφταναν ως τον εξώστη και ολόκληρος ο πύργος έτρεμε, "
    "όμως η φλόγα πίσω από το γυαλί δεν έσβησε ποτέ. Στην ακτή ένας φούρναρης ξυπνούσε στις τρεις "
    "και τα πρώτα ψωμιά ήταν για τους ψαράδες, που τους γνώριζε από τον ήχο των βημάτων τους. "
)
READABLE |= {"long English": LONG_ENGLISH, "long Russian": LONG_RUSSIAN, "Greek": GREEK} | {
    "numbers in letters": " ".join(f"0x{number * 2654435761 % 2**32:x}," for number in range(200)),
    "in capitals": LONG_ENGLISH.upper(),
    "Russian in capitals": LONG_RUSSIAN.upper(),
    "Romanised names": "CHENG HSIEH HUNG CHIA HSIANG SHIH CHANG WEN MEI LING CHUN YING TSAI KUO "
    "PENG CHOU HSU SUN CHU KAO LIANG SUNG TENG HAN FENG TSAO HSIAO TIEN TUNG PAN YUAN CHIANG "
    "FAN FANG SHIH YAO LIAO TSOU HSIUNG CHIN LU HAO KUNG SHAO WAN CHIEN LEI HOU LUNG TUAN HO " * 2,
}


def encipher(text: str, alphabet: str) -> str:
    """Return the text with each letter replaced by another one of the alphabet."""
    shuffled = list(alphabet)
    random.Random(11).shuffle(shuffled)
    key = str.maketrans(alphabet + alphabet.upper(), "".join(shuffled) + "".join(shuffled).upper())
    return text.translate(key)


UNREADABLE = {
    "a cipher": encipher(LONG_ENGLISH, "abcdefghijklmnopqrstuvwxyz"),
    "a cipher in Cyrillic": encipher(LONG_RUSSIAN, "абвгдежзийклмнопрстуфхцчшщъыьэюя"),
    "KOI8-R taken for windows-1251": LONG_RUSSIAN.encode("koi8-r").decode("cp1251"),
    "windows-1251 taken for KOI8-R": LONG_RUSSIAN.encode("cp1251").decode("koi8-r"),
    "French in UTF-8 taken for windows-1252": "L’été dernier, la gardienne élégante a réparé le "
    "très vieux phare".encode().decode("cp1252"),
    "Russian in UTF-8 taken for windows-1251": RUSSIAN.encode().decode("cp1251", "replace"),
    "replacement characters": "\ufffd" * 60 + ENGLISH[:100],
    "private characters": "".join(chr(0xF000 + ord(char)) for char in ENGLISH),
    "unassigned characters": "\u0378\u0379" * 50,
    "glyph numbers taken for characters": shift_letters(ENGLISH, -29),
    "the next letter": shift_letters(ENGLISH, 1),
    "Cyrillic taken for Latin": RUSSIAN.encode("cp1251").decode("latin-1"),
    "Arabic taken for Latin": ARABIC.encode("cp1256", "ignore").decode("latin-1"),
    "Chinese taken for Latin": CHINESE.encode("gbk").decode("latin-1"),
    "UTF-8 taken for Latin": RUSSIAN.encode().decode("latin-1"),
    "Chinese characters at random": pick_characters(0x4E00, 0x9FA5),
    "Korean syllables at random": pick_characters(0xAC00, 0xD7A3),
    "scripts at random": pick_characters(0x100, 0x1500),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_wrongly_decoded_text_is_unreadable(name: str):
    lines = lines_of(UNREADABLE[name])
    for line in lines:
        line.text = clean(mark_controls(line.text))
    assert is_unreadable(lines)


def test_a_headline_that_covers_much_of_the_text_counts_by_its_area():
    small = lines_of(ENGLISH)
    assert not is_unreadable([Line(50, 500, 100, 510, "\ufffd" * 4, 10), *small])
    assert is_unreadable([Line(50, 500, 500, 620, "\ufffd" * 4, 110), *small])


def test_bullets_of_a_private_font_and_lone_controls_make_no_page_unreadable():
    assert not is_unreadable(lines_of(ENGLISH + " \uf0b7" * 5))
    assert mark_controls("a\x00b and c and d") == "a\x00b and c and d"
    assert mark_controls("\x01\x02\x03ab") == "\ufffd\ufffd\ufffdab"


def test_most_ciphers_of_a_page_are_recognised():
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    rng = random.Random(5)
    recognised = 0
    for _ in range(40):
        key = "".join(rng.sample(alphabet, len(alphabet)))
        recognised += is_gibberish(LONG_ENGLISH.lower().translate(str.maketrans(alphabet, key)))
    assert recognised >= 34


def test_too_few_letters_are_no_gibberish():
    assert not is_gibberish(shift_letters(ENGLISH[:60], 1))
    assert is_gibberish(shift_letters(ENGLISH[:60], 1), min_pairs=20)
