"""Read the text of pictures with RapidOCR: a page of a PDF or an image is drawn, and its lines are
read.

Runs in a process of its own, like all code that opens foreign files. The models are part of the
package (Apache-2.0) and are loaded once in a process; nothing is fetched at run time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from math import atan2, cos, sin
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.media_types import PDF
from switchyard.services.common.files.storage import Storage
from switchyard.services.pipeline.text.layout import Line, gutters
from switchyard.services.pipeline.text.legibility import is_unreadable
from switchyard.services.pipeline.text.markdown import PageLines, clean_line, compose
from switchyard.services.pipeline.text.ocr_rotation import MIN_CERTAINTY, find_lines, length
from switchyard.services.pipeline.text.pdf import ExtractorName, draw_page_with_text
from switchyard.services.pipeline.text.pdf_pages import MIN_SCAN_SHARE, Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]

OCR_VERSION = "rapidocr-3/ppocr-v6-small/4"
"""Version of the models, and of the way in which text is made of their lines. Pages that were read
with another version are read again."""
DPI = 150
MAX_SIDE = 3_000
MAX_PIXELS = 24_000_000
"""Pixels of a drawn page: a page that has more, and a side longer than MAX_SIDE, is drawn smaller.
The models look at 2,000 pixels a side, and at pieces where the print would be too small."""
MEMORY_MB = 3072
"""Address space in MiB of a process that reads pages. A page of A4 takes about half of it; resident
memory is some 0.5 GB, and never above 0.9 GB."""

BUILT_IN = frozenset(
    (
        *("af", "az", "bs", "ca", "ch", "chinese_cht", "cs", "cy", "da", "de", "en", "es", "et"),
        *("eu", "fi", "fr", "ga", "gl", "hr", "hu", "id", "is", "it", "japan", "ku", "la", "lb"),
        *("lt", "lv", "mi", "ms", "mt", "nl", "no", "oc", "pl", "pt", "qu", "rm", "ro"),
        *("rs_latin", "sk", "sl", "sq", "sv", "sw", "tl", "tr", "uz", "vi"),
    )
)
"""Languages that the package's model reads, without being told which one a page is in."""
_LANGUAGE_ALIASES = {"zh": "ch", "zh_cn": "ch", "zh_tw": "chinese_cht", "ja": "japan"}
_MODELS_FOLDER = "models"
_DETECTION, _RECOGNITION = "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"
_MAX_LEVEL_SLOPE = 0.01
"""Largest slope of the lines of a level page, in radians: half a degree."""
_MIN_CONTRAST = 64
"""Smallest difference between paper and ink, in shades of 256."""


class OcrNotInstalled(PermanentError):
    """This worker has no OCR."""


class UnknownLanguage(PermanentError):
    """No model reads that language here."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A document's file in the storage, where every process can read it."""

    storage: Storage
    key: str
    sha256: str
    """Hash of the content, or of what identifies it: a file with another hash is read again."""
    media_type: str
    extractor: ExtractorName = "pymupdf"
    """The library that draws the pages of a PDF."""


_MAX_ASPECT_RATIO = 100
"""Largest ratio of length to width of a picture that is read."""
_BLANK_CONTRAST = 8
"""The shades of an empty page differ by less than this, of 256."""


MAX_LINES, MAX_LINE_LENGTH = 500, 200
"""Highest number of lines of a page that are kept with their places (a dense page has 200), and
characters that are kept of each."""
PLACES = 10_000
"""Places on a page are whole numbers: this many parts of its width, or of its height."""


class ReadLine(NamedTuple):
    """A line that OCR has read, and the box around it on the page as it is shown, in PLACES."""

    x0: int
    y0: int
    x1: int
    y1: int
    certainty: float
    """0 to 1."""
    text: str


@dataclass(frozen=True, slots=True)
class ReadPage:
    """The text that OCR has read on a page."""

    text: str
    """Paragraphs with blank lines between them, in reading order."""
    certainty: float
    """0 to 1: the mean of the lines that were read, 0 where there are none."""
    turned: int
    """Degrees by which the picture had to be turned to the left: 0, 90, 180 or 270."""
    lines: Sequence[ReadLine] = ()
    """The first MAX_LINES lines that OCR itself has read with enough certainty."""


def require_ocr(language: str | None, models: Path | None) -> None:
    """Check that OCR can read a language. Raises OcrNotInstalled, UnknownLanguage."""
    if find_spec("rapidocr") is None or find_spec("onnxruntime") is None:
        raise OcrNotInstalled(
            "this worker has no OCR: install switchyard[ocr] there and redrive the job"
        )
    _model_of(language, models)


def read_page(
    original: SourceFile, number: int, language: str | None = None, models: Path | None = None
) -> ReadPage:
    """Read one page, from 1.

    Raises what opening and drawing the page raises (CorruptDocument, EncryptedDocument,
    DocumentTooLarge, NotStored), OcrNotInstalled, UnknownLanguage, MemoryError.
    """
    require_ocr(language, models)
    data = _content(original)
    limits = Limits()
    typed_lines: Sequence[Line] = ()
    if original.media_type == PDF:
        page, picture = draw_page_with_text(
            data,
            number,
            dpi=DPI,
            side=MAX_SIDE,
            area=MAX_PIXELS,
            limits=limits,
            extractor=original.extractor,
        )
        if (
            page is not None
            and page.picture_share > MIN_SCAN_SHARE
            and not is_unreadable(page.lines)
        ):
            typed_lines = _scale_lines(page, picture.shape[1] / page.width)
    else:
        import numpy as np

        from switchyard.services.pipeline.text.images import draw

        image = draw(data, number, pixels=limits.page_pixels, side=MAX_SIDE, area=MAX_PIXELS)
        picture = np.asarray(image)
    return read_picture(picture, str(_model_of(language, models)), typed_lines)


def read_picture(
    picture: Picture, model: str | None = None, typed_lines: Sequence[Line] = ()
) -> ReadPage:
    """Read a picture: rows of pixels, each red, green and blue. `typed_lines` are lines that are
    known to be on it, with places in pixels: each is in the result once, whether OCR reads it or
    not."""
    import numpy as np

    height, width = picture.shape[:2]
    (typed_text,) = compose([PageLines(width, height, typed_lines)])
    if max(height, width) > _MAX_ASPECT_RATIO * min(height, width):
        # The engine would scale one side to nothing, and fail.
        return ReadPage(typed_text, 0.0, 0)
    if (np.ptp(picture, axis=(0, 1)) < _BLANK_CONTRAST).all():
        # An empty page would take the models as long as a full one.
        return ReadPage(typed_text, 0.0, 0)
    engine = _engine(model or str(_model_of(None, None)))
    picture = np.ascontiguousarray(picture[:, :, ::-1])  # the models expect blue, green, red
    boxes, texts, scores, turned = _read_upright(engine, picture)
    certain_lines = [
        (box, clean_line(text), score)
        for box, text, score in zip(boxes, texts, scores, strict=True)
        if score >= MIN_CERTAINTY and text.strip()
    ]
    if not certain_lines:
        return ReadPage(typed_text, 0.0, turned)
    read_lines = [
        _read_line(box, text, score, width, height, turned)
        for box, text, score in certain_lines[:MAX_LINES]
    ]
    lines = _lines([box for box, _, _ in certain_lines], [text for _, text, _ in certain_lines])
    lines = _merge_typed(lines, [_rotate_line(line, width, height, turned) for line in typed_lines])
    (text,) = compose([PageLines(width, height, lines)])
    certainty = sum(score for _, _, score in certain_lines) / len(certain_lines)
    return ReadPage(text, round(certainty, 3), turned, read_lines)


def _read_line(
    box: Any, text: str, score: float, width: float, height: float, turned: int
) -> ReadLine:
    """Return a line with its place on the unturned picture, which is `width` × `height` pixels. The
    box is on the picture turned by `turned` degrees."""
    xs, ys = [float(x) for x, _ in box], [float(y) for _, y in box]
    line = Line(min(xs), min(ys), max(xs), max(ys), text, 0.0)
    if turned % 180:
        line = _rotate_line(line, height, width, 360 - turned)
    else:
        line = _rotate_line(line, width, height, turned)

    def place(distance: float, side: float) -> int:
        return round(PLACES * min(1.0, max(0.0, distance / side)))

    return ReadLine(
        place(line.x0, width),
        place(line.y0, height),
        place(line.x1, width),
        place(line.y1, height),
        round(float(score), 3),
        text[:MAX_LINE_LENGTH],
    )


def _scale_lines(page: PageLines, zoom: float) -> list[Line]:
    """Return the lines of a page with places on its picture."""
    return [
        replace(
            line,
            x0=line.x0 * zoom,
            y0=line.y0 * zoom,
            x1=line.x1 * zoom,
            y1=line.y1 * zoom,
            size=line.size * zoom,
        )
        for line in page.lines
    ]


def _rotate_line(line: Line, width: float, height: float, turned: int) -> Line:
    """Return a line with its place on the turned picture: `width` × `height` pixels before it was
    turned to the left by `turned` degrees."""
    for _ in range(turned // 90):
        x0, y0, x1, y1 = line.y0, width - line.x1, line.y1, width - line.x0
        line = replace(line, x0=x0, y0=y0, x1=x1, y1=y1)
        width, height = height, width
    return line


def _merge_typed(lines: Sequence[Line], typed_lines: Sequence[Line]) -> list[Line]:
    """Merge the lines that OCR has read with the typed ones, each once: a line that was read in the
    place of a typed one, and has no more text, is left out."""
    all_lines = list(lines)
    for line in typed_lines:
        overlapping = [number for number, other in enumerate(all_lines) if _overlaps(line, other)]
        if any(_contains_typed(all_lines[number], line) for number in overlapping):
            continue
        equally_wide = [number for number in overlapping if _is_as_wide(line, all_lines[number])]
        if equally_wide:
            all_lines[equally_wide[0]] = line
        else:
            all_lines.append(line)
    return all_lines


def _contains_typed(line: Line, typed: Line) -> bool:
    """Return whether a line has the typed text, and not as a part of a longer number."""
    if typed.text.isdecimal():
        return typed.text in re.findall(r"\d+", line.text)
    return _letters(typed.text) in _letters(line.text)


def _overlaps(line: Line, other: Line) -> bool:
    shared_height = min(line.y1, other.y1) - max(line.y0, other.y0)
    shared_width = min(line.x1, other.x1) - max(line.x0, other.x0)
    return shared_height > 0.4 * min(line.height, other.height) and shared_width > 0


def _is_as_wide(line: Line, other: Line) -> bool:
    shared_width = min(line.x1, other.x1) - max(line.x0, other.x0)
    return shared_width > 0.6 * max(line.x1 - line.x0, other.x1 - other.x0)


def _letters(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


def _model_of(language: str | None, models: Path | None) -> Path:
    """Return the file of the model that reads a language. Raises UnknownLanguage."""
    package = find_spec("rapidocr")
    if package is None or package.origin is None:
        raise OcrNotInstalled("this worker has no OCR: install switchyard[ocr] there")
    name = _LANGUAGE_ALIASES.get(language or "", language)
    if name is None or name in BUILT_IN:
        return Path(package.origin).parent / _MODELS_FOLDER / _RECOGNITION
    own_model = models / f"{name}.onnx" if models is not None else None
    if own_model is not None and own_model.is_file():
        return own_model
    raise UnknownLanguage(
        f"no model here reads {name!r}: put {name}.onnx into the directory of JOBS_OCR_MODELS, or "
        f"name one of {', '.join(sorted({*BUILT_IN, *_LANGUAGE_ALIASES}))}"
    )


@lru_cache(maxsize=1)
def _content(original: SourceFile) -> bytes:
    """Read the file, and cache it, as the next pages are mostly of the same document."""
    return original.storage.get(original.key)


@lru_cache(maxsize=1)
def _engine(model: str) -> Any:
    """Load RapidOCR with its models: takes a second, and some 400 MB."""
    import cv2
    from rapidocr import RapidOCR

    folder = Path(model).parent
    package = find_spec("rapidocr")
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent / _MODELS_FOLDER
    paths = {
        "Det.model_path": folder / _DETECTION,
        "Rec.model_path": Path(model),
    }
    for path in paths.values():
        if not path.is_file():  # the library would download the model
            raise OcrNotInstalled(f"the model {path.name} is missing: install rapidocr again")
    cv2.setNumThreads(1)
    return RapidOCR(
        params={name: str(path) for name, path in paths.items()}
        | {
            "Global.log_level": "critical",
            # Pages are read side by side, by as many processes as there are slots.
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            # In batches, each line would be as wide as the widest: slower, and twice the memory.
            "Rec.rec_batch_num": 1,
        }
    )


def _read_upright(engine: Any, picture: Picture) -> tuple[list[Any], list[str], list[float], int]:
    """Return boxes, texts and certainties, and the degrees by which the picture was turned."""
    from rapidocr.main import RapidOCRError

    turned = 0
    try:
        upright = find_lines(engine, picture)
        boxes, crops, turned = list(upright.boxes), upright.crops, upright.turned
        divided_boxes = _divide_boxes(upright.picture, boxes)
        if divided_boxes is not None:
            boxes = divided_boxes
            crops = engine.crop_text_regions(upright.picture, divided_boxes)
        recognised = engine.recognize_txt(crops)
    except RapidOCRError:  # raised for a page without text
        return [], [], [], turned
    return boxes, list(recognised.txts), list(recognised.scores), turned


def _divide_boxes(picture: Picture, boxes: list[Any]) -> list[Any] | None:
    """Divide boxes that reach over two columns; None where there are none. Where columns are close,
    detection makes one box of two lines."""
    import numpy as np

    lines = _lines(boxes, ["x"] * len(boxes))
    spaces = gutters(lines, max_crossed=2.0)
    if not spaces or abs(_angle(boxes)) > _MAX_LEVEL_SLOPE:
        return None
    parts = []
    for box in boxes:
        x0, x1 = min(x for x, _ in box), max(x for x, _ in box)
        y0, y1 = int(min(y for _, y in box)), int(max(y for _, y in box))
        cuts = [
            (start, end)
            for start, end in spaces
            if x0 < start and end < x1 and _is_empty(picture[y0:y1, int(start) + 1 : int(end)])
        ]
        for start, end in sorted(cuts):
            parts.append(np.array([[x0, y0], [start, y0], [start, y1], [x0, y1]], np.float32))
            x0 = end
        if cuts:
            box = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float32)
        parts.append(box)
    return parts if len(parts) > len(boxes) else None


def _is_empty(part: Picture) -> bool:
    """Return whether nothing is printed on a part of the picture."""
    return part.size > 0 and int(part.max()) - int(part.min()) < _MIN_CONTRAST


def _angle(boxes: list[Any]) -> float:
    """Return the slope of most lines, in radians."""
    return median(atan2(box[1][1] - box[0][1], box[1][0] - box[0][0]) for box in boxes)


def _lines(boxes: list[Any], texts: list[str]) -> list[Line]:
    """Return the boxes as lines of a level page, turned back by the slope of most of them."""
    angle = _angle(boxes)
    cosine, sine = cos(-angle), sin(-angle)
    usual_height = median(length(box[0], box[3]) for box in boxes)
    lines = []
    for box, text in zip(boxes, texts, strict=True):
        xs = [float(x * cosine - y * sine) for x, y in box]
        ys = [float(x * sine + y * cosine) for x, y in box]
        height = length(box[0], box[3])
        middle = sum(ys) / len(ys)
        # Without the margin that detection adds above and below, which would make lines overlap.
        y0, y1 = middle - 0.4 * height, middle + 0.4 * height
        # A line without ascenders has a box of less height, but letters of the same size.
        size = usual_height if 0.7 < height / usual_height < 1.4 else height
        lines.append(Line(min(xs), y0, max(xs), y1, text, size))
    return lines
