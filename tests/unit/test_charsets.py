"""Bytes from outside are read as browsers read them."""

from __future__ import annotations

import codecs
import random
from collections.abc import AsyncIterator

import pytest
from webencodings.labels import LABELS

from switchyard.services.common.files.charset_choice import choose_charset, convert_to_utf8
from switchyard.services.common.files.charsets import (
    Charset,
    charset_in,
    charset_named,
    charset_of,
    decode,
)
from switchyard.services.pipeline.sources.safe_xml import xml_tree
from switchyard.services.pipeline.sources.source_response import SourceResponse
from switchyard.services.pipeline.text.web_page_text import read_page


@pytest.mark.parametrize(
    ("label", "data", "text"),
    [
        ("iso-8859-1", b"\x80 5, \x93so\x94, it\x92s", "€ 5, “so”, it’s"),
        ("US-ASCII", b"\x80", "€"),
        (" latin1\n", b"\x93\xe9\x94", "“é”"),
        ("iso-8859-9", b"\xfe\x80", "ş€"),
        ("tis-620", "ไทย".encode("cp874") + b"\x85", "ไทย…"),
        ("gb2312", "朱镕基".encode("gbk"), "朱镕基"),
        ("gbk", b"\x80 5 \x81\x30\x81\x30", "€ 5 \x80"),
        ("csgb2312", "㐀".encode("gb18030"), "㐀"),
        ("shift_jis", "①髙".encode("cp932"), "①髙"),
        ("euc-jp", b"\xad\xa1\xad\xea" + "日本".encode("euc_jp"), "①㈱日本"),
        ("iso-2022-jp", b"\x1b$B-!F|\x1b(B a", "①日 a"),
        ("ks_c_5601-1987", "똠방".encode("cp949"), "똠방"),
        ("big5", "嘅".encode("big5hkscs"), "嘅"),
        ("koi8-u", b"\xae", "ў"),
        ("x-mac-cyrillic", b"\xff", "€"),
        ("windows-1252", b"\x81\x90", "\x81\x90"),
        ("unicode", "€".encode("utf-16-le"), "€"),
        ("iso-2022-kr", b"abc", "\ufffd"),
        ("utf-8", b"\xff", "\ufffd"),
    ],
)
def test_a_label_means_what_it_means_to_browsers(label: str, data: bytes, text: str) -> None:
    charset = charset_named(label)
    assert charset is not None
    assert charset.decode(data) == text


def test_every_label_of_the_standard_decodes_bytes() -> None:
    for label in LABELS:
        charset = charset_named(label.upper())
        assert charset is not None
        if charset.name != "replacement":
            assert (
                charset.decode(
                    "ab".encode(
                        "utf-16-le"
                        if "16le" in charset.name
                        else ("utf-16-be" if "16be" in charset.name else "ascii")
                    )
                )
                == "ab"
            )
        charset.decode(bytes(range(256)) * 2)


@pytest.mark.parametrize("label", ["utf-7", "idna", "zip", "no-such", "", "\u212aoi8-r"])
def test_labels_that_browsers_do_not_know_name_nothing(label: str) -> None:
    assert charset_named(label) is None


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF8 + "€ 5".encode(),
        codecs.BOM_UTF16_LE + "€ 5".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "€ 5".encode("utf-16-be"),
    ],
)
def test_a_byte_order_mark_overrides_the_declared_charset(data: bytes) -> None:
    assert decode(data, charset_named("iso-8859-1")) == "€ 5"


@pytest.mark.parametrize(
    ("content_type", "name"),
    [
        ("text/html; charset=ISO-8859-1", "windows-1252"),
        ("text/html;charset='gb2312'", "gbk"),
        ('text/plain; charset = "Shift-JIS"; x=y', "shift_jis"),
        ("text/html; charset=nonsense", None),
        ("text/html", None),
        (None, None),
    ],
)
def test_a_content_type_names_the_charset(content_type: str | None, name: str | None) -> None:
    charset = charset_of(content_type)
    assert (charset and charset.name) == name


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("<meta charset=gb2312>", "gbk"),
        ("<META content='text/html; charset=koi8-r' HTTP-EQUIV=Content-Type>", "koi8-r"),
        ("<meta name=a content='charset=big5'><meta charset='utf-16'>", "utf-8"),
        ("<!-- <meta charset=big5> --><meta charset=x-user-defined>", "windows-1252"),
        ('<?xml version="1.0" encoding="EUC-KR"?><html>', "euc-kr"),
        ("<meta charset=nonsense><meta charset=sjis>", "shift_jis"),
        ("<head>" + "<link rel=x href=y>" * 100 + "<meta charset=big5>", "big5"),
        ("<body><meta charset=big5>", None),
        ("<p>none", None),
    ],
)
def test_a_page_names_its_charset_itself(page: str, name: str | None) -> None:
    charset = charset_in(page.encode())
    assert (charset and charset.name) == name


WESTERN = "“Café” costs 5 €, the naïve user’s fiancée said – and that’s what it is."
PAGES = {
    "by its server": (WESTERN, "cp1252", "", "ISO-8859-1"),
    "by its meta": ("朱镕基总理在北京会见外国客人。", "gbk", "<meta charset=gb2312>", None),
    "by neither, western": (WESTERN, "cp1252", "", None),
    "by neither, Russian": ("Привет, это русский текст о погоде и море.", "cp1251", "", None),
    "by neither, Chinese": ("朱镕基总理今天在北京会见了外国客人。", "gbk", "", None),
    "by neither, Polish": ("Zażółć gęślą jaźń, to jest tekst o pogodzie.", "cp1250", "", None),
    "by neither, UTF-8": (WESTERN, "utf-8", "", None),
}


@pytest.mark.parametrize("case", PAGES)
def test_a_page_is_read_by_the_charset_that_is_named(case: str) -> None:
    text, codec, meta, charset = PAGES[case]
    html = f"<html><head>{meta}<title>T</title></head><body><p>{text}</p></body></html>"
    page_text = read_page(html.encode(codec), "http://example.org/", charset)
    assert text in page_text.text


TEXTS = {
    "cp1252": "“Café” costs 5 €, the naïve user’s fiancée said – and that’s what it is.",
    "cp1251": "Привет, это русский текст о погоде и море. Сегодня дождь, завтра солнце.",
    "koi8-r": "Привет, это русский текст о погоде и море. Сегодня дождь, завтра солнце.",
    "iso8859-5": "Привет, это русский текст о погоде и море. Сегодня дождь, завтра солнце.",
    "cp932": "東京の天気は明日も雨でしょう。海の近くでは風が強くなります。",
    "euc_jp": "東京の天気は明日も雨でしょう。海の近くでは風が強くなります。",
    "gb18030": "朱镕基总理今天在北京会见了外国客人，并进行了友好的谈话。",
    "big5": "台灣的天氣今天很好，明天會下雨。請大家注意安全。",
    "cp949": "오늘 서울의 날씨는 맑고 내일은 비가 오겠습니다.",
    "iso8859-7": "Ο καιρός σήμερα είναι καλός, αύριο θα βρέξει στη θάλασσα.",
    "cp1250": "Zażółć gęślą jaźń, to jest tekst o pogodzie i morzu.",
    "utf-8": "Über die Größe: “Café” costs 5 €, привет, 朱镕基.",
    "utf-16-le": "Погода und “Café”, 5 €, 朱镕基 are here.",
    "utf-16-be": "Погода und “Café”, 5 €, 朱镕基 are here.",
}
"""Texts by Python's name of the charset in which each is encoded."""
DECLARED_LABELS = (None, "utf-8", "iso-8859-1", "koi8-r", "shift_jis", "utf-16")


@pytest.mark.parametrize("label", DECLARED_LABELS)
@pytest.mark.parametrize("codec", TEXTS)
@pytest.mark.parametrize("form", ["<html><body><p>{}</p></body></html>", "{}"])
def test_a_text_is_read_in_its_own_charset_whatever_it_is_declared_to_be_in(
    codec: str, label: str | None, form: str
) -> None:
    text = form.format(TEXTS[codec])
    charset = choose_charset(text.encode(codec), [charset_named(label)])
    assert charset is not None
    assert charset.decode(text.encode(codec)) == text


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("iso-8859-1", "cp1252", "El niño comió piña; ¿qué pasó? ¡Años después volvió!"),
        ("iso-8859-1", "cp1252", "Það var einu sinni maður sem átti þrjá syni."),
        ("iso-8859-1", "cp1252", "x² + y² = z², 5 µm ± 3 °C, ½ ×"),
        ("iso-8859-9", "cp1254", "Bugün hava çok güzel, şehirde ışıklar söndü."),
        ("windows-1250", "cp1250", "Árvíztűrő tükörfúrógép, ma szép idő van."),
        ("iso-8859-2", "iso8859-2", "Žluťoučký kůň pěl ďábelské ódy, dnes je hezky."),
        ("windows-1257", "cp1257", "Šiandien graži diena, rytoj lis; ąžuolas."),
        ("windows-1251", "cp1251", "МОСКВА. СЕГОДНЯ ДОЖДЬ И СНЕГ."),
        ("koi8-u", "koi8-u", "Погода сьогодні гарна, їжак і ґанок, щастя й добро є."),
        ("windows-1255", "cp1255", "מזג האוויר היום יפה ומחר יירד גשם על הים."),
        ("windows-1256", "cp1256", "الطقس اليوم جميل وغدا سوف تمطر في المدينة"),
        ("tis-620", "cp874", "อากาศวันนี้ดี พรุ่งนี้ฝนจะตก"),
        ("gb2312", "gb18030", "中国"),
        ("shift_jis", "cp932", "日本"),
        ("koi8-r", "koi8-r", "Да"),
        ("iso-8859-1", "cp1252", "it’s"),
    ],
)
def test_a_charset_that_is_named_rightly_is_believed(label: str, codec: str, text: str) -> None:
    charset = choose_charset(text.encode(codec), [charset_named(label)])
    assert charset is not None
    assert charset.decode(text.encode(codec)) == text


@pytest.mark.parametrize(
    ("header", "meta", "codec"),
    [
        ("utf-8", "koi8-r", "koi8-r"),
        ("iso-8859-1", "utf-8", "utf-8"),
        ("iso-8859-1", "shift_jis", "cp932"),
        ("gb2312", "iso-8859-1", "gb18030"),
        (None, "utf-8", "cp1252"),
        (None, "iso-8859-1", "utf-8"),
    ],
)
def test_if_header_and_meta_differ_the_right_one_is_used(
    header: str | None, meta: str, codec: str
) -> None:
    head = f"<meta charset={meta}><title>T</title>"
    html = f"<html><head>{head}</head><body><p>{TEXTS[codec]}</p></body></html>"
    assert TEXTS[codec] in read_page(html.encode(codec), "http://example.org/", header).text


def test_an_answer_in_utf_8_is_read_as_such_whatever_its_header_says() -> None:
    headers = {"content-type": "application/json; charset=iso-8859-1"}
    answer = SourceResponse("Hub", "http://hub", 200, headers, '{"title": "5 €"}'.encode())
    assert answer.json() == {"title": "5 €"}
    assert decode("Größe €".encode()[:-1], Charset("windows-1252")) == "Größe \ufffd"


@pytest.mark.parametrize("ascii_before", [0, 10, 20_000])
@pytest.mark.parametrize("codec", ["utf-8", "koi8-r", "gb18030"])
async def test_a_file_declared_in_a_wrong_charset_is_converted_from_its_own(
    codec: str, ascii_before: int
) -> None:
    text = "a" * ascii_before + " " + TEXTS[codec] * 20

    async def parts() -> AsyncIterator[bytes]:
        data = text.encode(codec)
        for start in range(0, len(data), 700):
            yield data[start : start + 700]

    latin = Charset("windows-1252")
    converted = b"".join([part async for part in convert_to_utf8(parts(), lambda _: latin)])
    assert converted.decode() == text


def test_binary_data_gets_no_charset() -> None:
    rng = random.Random(1)
    noise = bytes(rng.randrange(0x80, 0x100) for _ in range(3_000))
    assert choose_charset(noise) is None


def test_answers_and_feeds_are_read_by_their_charset() -> None:
    body = '{"title": "it’s 5 €"}'.encode("cp1252")
    headers = {"content-type": "application/json; charset=iso-8859-1"}
    answer = SourceResponse("Hub", "http://hub", 200, headers, body)
    assert answer.json() == {"title": "it’s 5 €"}
    assert "it’s" in answer.text()
    feed = '<?xml version="1.0" encoding="gb2312"?><t>朱镕基</t>'.encode("gbk")
    assert xml_tree(feed, "Feed").text == "朱镕基"
    mislabelled_feed = '<?xml version="1.0" encoding="utf-8"?><t>5 €</t>'.encode("cp1252")
    assert xml_tree(mislabelled_feed, "Feed", Charset("windows-1252")).text == "5 €"


@pytest.mark.parametrize("size", [1, 3, 5000])
@pytest.mark.parametrize(
    ("name", "codec"), [("gbk", "gbk"), ("utf-16le", "utf-16"), ("windows-1252", "cp1252")]
)
async def test_a_file_becomes_utf_8_wherever_its_pieces_end(
    size: int, name: str, codec: str
) -> None:
    text = ("朱镕基," if codec != "cp1252" else "5 €,") * 3000
    data = text.encode(codec)

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    converted = b"".join([part async for part in convert_to_utf8(parts(), lambda _: Charset(name))])
    assert converted.decode() == text


async def test_a_text_that_is_not_what_it_is_declared_to_be_is_an_error() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"a" * 5000 + b"\xff\xff"

    with pytest.raises(UnicodeDecodeError):
        async for _ in convert_to_utf8(parts(), lambda _: Charset("gbk")):
            pass
