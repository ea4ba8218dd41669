"""The texts of the sample documents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Article:
    """A short article."""

    slug: str
    """Its file's name, without the ending."""
    title: str
    text: str
    """Paragraphs, with blank lines between them."""


_TIDES = Article(
    "ocean-tides",
    "Why the Ocean Has Tides",
    (
        "Twice a day the sea climbs up the beach and falls back again. The cause is the Moon. "
        "Its gravity pulls more strongly on the ocean that faces it than on the centre of the "
        "Earth, and more strongly on the centre than on the ocean on the far side. The "
        "difference stretches the water into two bulges, one towards the Moon and one away from "
        "it. As the Earth turns, a coast passes through both bulges, and so it has two high "
        "tides and two low tides in a little under twenty-five hours.\n\n"
        "The Sun raises tides as well, a little less than half as high as those of the Moon. At "
        "new moon and full moon the two pull along the same line, and the range between high and "
        "low water is large: these are spring tides. At the quarters of the Moon they pull at "
        "right angles and partly cancel, which gives the small range of neap tides. Sailors have "
        "known this rhythm of two weeks for thousands of years, long before anybody could "
        "explain it.\n\n"
        "On an Earth covered by deep water the tide would be about half a metre. Real coasts "
        "change it greatly. A tide is a very long wave, and where a bay has the right length the "
        "water sloshes in time with it, as in a bathtub. In the Bay of Fundy in Canada the sea "
        "rises by as much as sixteen metres. In the Mediterranean, nearly closed off from the "
        "ocean, a visitor may not notice any tide at all.\n\n"
        "Tides are predicted by adding up dozens of regular oscillations, each with the period "
        "of some motion of the Moon or the Sun. In the nineteenth century Lord Kelvin built a "
        "machine of pulleys and gears that drew the tide of a port for a whole year in a few "
        "hours. Today computers do the sum, but the method is the same, and only the weather, "
        "which can pile up water against a coast, still surprises the harbour master."
    ),
)

_TIDAL_POWER = Article(
    "tidal-power",
    "Electricity from the Tides",
    (
        "A tide carries an enormous amount of water past a coast, and always on time. Engineers "
        "have two ways to take electricity from it. A tidal barrage is a dam across a bay: it "
        "lets the high tide in, holds the water back, and sends it through turbines when the sea "
        "outside has fallen. A tidal stream turbine stands in the open water, like a windmill on "
        "the sea floor, and turns in the current that the tide drives through a strait.\n\n"
        "The barrage at La Rance in Brittany has worked since 1966. Its twenty-four turbines "
        "reach 240 megawatts, and a road runs over the dam. It also shows the price: for some "
        "years during the building the bay was closed to the sea, and its animals died. Life "
        "came back once the tide flowed through the turbines, though it was not the same life as "
        "before. Sihwa Lake in South Korea, opened in 2011, uses a sea wall that already stood "
        "there.\n\n"
        "Turbines in the open stream disturb the coast less, and they can be added one at a "
        "time. Sea water is some eight hundred times as dense as air, so a slow current carries "
        "as much power as a storm. But salt corrodes the blades, shells grow on them, and every "
        "repair needs a ship and calm water between two tides. The electricity is still more "
        "expensive than that of wind turbines on land.\n\n"
        "What makes tidal electricity valuable is that it can be foretold. Wind and sunshine "
        "are known for a few days ahead, a tide for centuries. The power rises and falls four "
        "times a day, and high water comes at a different hour in every port, so turbines spread "
        "along a coast could supply a steady part of a country's electricity, with less storage "
        "than wind needs."
    ),
)

_WIND = Article(
    "wind-turbines",
    "How Wind Turbines Make Electricity",
    (
        "The blade of a wind turbine works like the wing of an aeroplane. Air that flows over "
        "its curved side makes lift, and the lift pulls the blade around. Modern turbines have "
        "three blades, because two would load the tower unevenly and four would cost more than "
        "they bring. The rotor turns slowly, often ten times a minute; a gearbox or a ring of "
        "strong magnets turns that into electricity of the grid's frequency.\n\n"
        "The power in the wind grows with the cube of its speed. Wind that blows twice as fast "
        "carries eight times as much, which is why turbines stand on hills and at sea, and why "
        "their towers have grown beyond a hundred and fifty metres: higher up the wind is "
        "faster and steadier. No turbine can take all of it. In 1919 Albert Betz showed that at "
        "most sixteen parts in twenty-seven of the power can be taken, since the air has to "
        "flow away behind the rotor.\n\n"
        "A turbine starts to turn in a light breeze, reaches its full power in a fresh one, and "
        "in a storm turns its blades out of the wind and stops. Over a year a turbine on land "
        "delivers about a third of what it would at full power all the time, and one at sea up "
        "to half. Its noise and its shadow are reasons to keep it away from houses; birds and "
        "bats are a reason to choose the place with care.\n\n"
        "Because wind comes and goes, a grid with many turbines needs something that fills the "
        "gaps: lines to regions with other weather, power stations that start quickly, or "
        "storage in batteries and reservoirs. Spreading the turbines helps most. The wind over "
        "a continent never stops everywhere at once, and the electricity of a thousand turbines "
        "is far steadier than that of one."
    ),
)

_STORAGE = Article(
    "storing-electricity",
    "Storing Electricity for a Windless Day",
    (
        "Electricity must be used in the moment in which it is made, unless it is turned into "
        "something that keeps. The oldest store on the grid is water. A pumped storage station "
        "uses cheap electricity at night to pump water into a reservoir on a mountain, and lets "
        "it fall through turbines when electricity is dear. About four fifths of the energy "
        "come back. Nearly all of the world's large storage is still of this kind.\n\n"
        "Batteries have become the second. In a lithium battery, charged atoms wander from one "
        "electrode to the other while the battery is charged, and back when it gives power. A "
        "battery answers within a fraction of a second, fits on a field beside a wind farm, and "
        "returns nine tenths of what it took. Its price has fallen by nine tenths in ten years. "
        "But it holds power for hours and not for weeks, and it ages with every charge.\n\n"
        "For a dark and windless fortnight in winter, engineers think of gas. Electricity "
        "splits water into hydrogen and oxygen; the hydrogen waits in a cavern of salt, and is "
        "burnt in a power station, or used in a fuel cell, months later. Hardly more than a "
        "third of the energy survives the detour, so it will only be used where nothing else "
        "lasts long enough.\n\n"
        "Not every store gives electricity back. A tank of hot water, a cold store for fish or "
        "a car that waits for its charge can all draw their power when the wind blows and rest "
        "when it does not. Moving demand costs little, and a grid that does it well needs fewer "
        "batteries and fewer turbines. The cheapest kilowatt hour is the one that need not be "
        "stored."
    ),
)

_BEES = Article(
    "honeybees",
    "The Working Life of the Honeybee",
    (
        "A honeybee colony in summer has one queen, some hundreds of drones and up to fifty "
        "thousand workers, all of them daughters of the queen. A worker lives about six weeks, "
        "and her age decides her work. First she cleans cells, then she feeds larvae, then she "
        "builds comb from wax that she sweats from her own body, then she guards the entrance. "
        "Only in the last weeks of her life does she fly out to gather nectar and pollen.\n\n"
        "A bee that has found good flowers tells the others by dancing on the comb. She runs in "
        "a straight line, waggling, turns back, and runs again. The angle of the run to the "
        "vertical is the angle between the flowers and the sun, and its length is the distance. "
        "Karl von Frisch deciphered this waggle dance and received a Nobel Prize for it in 1973. "
        "Her sisters follow the dance in the dark of the hive, by touch.\n\n"
        "Nectar is thin sugar water. In the hive the bees pass it from mouth to mouth, add "
        "enzymes, and fan it with their wings until less than a fifth of it is water. Then it "
        "is honey and does not spoil. A jar of half a kilogram is the work of some two million "
        "visits to flowers. The colony eats its honey in winter, when the bees form a cluster "
        "around the queen and shiver to keep it warm.\n\n"
        "Wild and farmed plants alike depend on these visits, for a bee dusted with pollen "
        "carries it from flower to flower. Almonds, apples, cherries and many vegetables would "
        "bear little without bees. Colonies suffer from a mite called varroa, from poisons "
        "sprayed on fields, and from landscapes in which nothing flowers after June. Strips of "
        "wild flowers beside the fields help honeybees and wild bees alike."
    ),
)

_FLOWERS = Article(
    "flowers-and-pollinators",
    "Flowers and Those Who Visit Them",
    (
        "A plant cannot walk to its mate. Grasses and pines leave their pollen to the wind and "
        "waste most of it; flowers hire animals. Colour and scent are advertisement, nectar is "
        "the wage, and the pollen that sticks to the visitor is the freight. When a bee, a "
        "butterfly or a hummingbird moves on to the next flower of the same kind, pollen reaches "
        "the stigma, and seeds can grow.\n\n"
        "Flowers are shaped by those who visit them. Bees see blue, yellow and ultraviolet, and "
        "many flowers have ultraviolet lines that lead a bee to the nectar, invisible to us. "
        "Flowers for birds are often red and have no scent, for most birds smell little. Flowers "
        "for moths are pale, open in the evening and smell sweet. A flower that smells of "
        "rotting meat is not ill: it is pollinated by flies.\n\n"
        "Some partnerships have become narrow. In 1862 Charles Darwin was sent an orchid from "
        "Madagascar with a nectar tube almost thirty centimetres long, and foretold a moth with "
        "a tongue to match. It was found decades later. Each fig species has wasps of its own, "
        "which breed in the fig and carry its pollen; neither can live without the other. Where "
        "one partner dies out, the other follows.\n\n"
        "Most plants are less choosy, and a meadow is a net of many visitors and many flowers. "
        "That makes it robust: when one kind of wild bee has a bad year, others take over. But "
        "insects have become fewer in many countries, and gardens and fields with little in "
        "bloom give pollinators no food between spring and autumn. A row of herbs on a balcony "
        "is visited within days."
    ),
)

_PRINTING = Article(
    "printing-press",
    "The Printing Press and What Came of It",
    (
        "Around 1450 Johannes Gutenberg in Mainz put together several inventions that made "
        "books cheap. Letters were cast one by one in a metal of lead, tin and antimony, all of "
        "the same height, so that a page could be set from them, printed, taken apart and set "
        "anew. An oily ink stuck to the metal. And a press, known to makers of wine and of "
        "paper, pushed the sheet against the type with an even force.\n\n"
        "Printing itself was older. In China and Korea whole pages had been cut in wood for "
        "centuries, and Bi Sheng made movable type of baked clay around 1040. But with "
        "thousands of characters, a printer had to keep and find thousands of types, and wooden "
        "blocks often served as well. The Latin alphabet with its few letters suited the method "
        "better, and printing shops spread over Europe within fifty years.\n\n"
        "A scribe copied a book in months; a press with two printers made two hundred sheets an "
        "hour. By 1500 there were some twenty million printed volumes in Europe. Readers could "
        "compare editions, errors could be listed and corrected, and a drawing of a plant or a "
        "map was the same in every copy. The pamphlets of the Reformation, the news sheet and "
        "the scientific journal are all children of the press.\n\n"
        "For three and a half centuries the press hardly changed. Then steam drove it, rollers "
        "replaced the flat plate, and paper came in endless rolls. The newspaper for everybody "
        "was born when type setting, too, was left to a machine: in Linotype machines a whole "
        "line was cast at once. Today most type is light on a screen, but we still call it a "
        "font, after the French word for casting."
    ),
)

_PAPER = Article(
    "making-paper",
    "How Paper Is Made, Then and Now",
    (
        "Paper is a felt of plant fibres. They are beaten in water until they swell and fray, "
        "the thin pulp is drained through a sieve, and the wet sheet that stays behind is "
        "pressed and dried. While it dries the fibres bond to one another by themselves, without "
        "glue. Chinese makers used mulberry bark, hemp and rags two thousand years ago, and the "
        "court official Cai Lun reported the method to the emperor in the year 105.\n\n"
        "The craft travelled west along the trade roads: to Samarkand, to Baghdad, to Cairo, "
        "and with the Arabs to Spain. In Italy mills driven by water stamped linen rags into "
        "pulp, and makers began to mark their sheets with a watermark of bent wire. When the "
        "printing press came, paper was ready for it. Parchment could never have met the demand "
        "of the printers: a single large book on parchment took the skins of a flock.\n\n"
        "Rags became scarce as printing grew. In the nineteenth century makers learnt to use "
        "wood, first ground on a stone, later boiled with chemicals that dissolve lignin, the "
        "stuff that holds the fibres together. Wood made paper cheap enough for newspapers. Yet "
        "the acid left in the sheets made them yellow and brittle, and many books of that time "
        "are crumbling on their shelves today.\n\n"
        "A modern paper machine is as long as a street. Pulp that is ninety-nine parts water "
        "runs onto an endless sieve at the speed of a car on a motorway, and seconds later dry "
        "paper is wound onto a roll. More than half of the fibres come from waste paper. A "
        "fibre can be used again some seven times, then it is too short to hold, and new wood "
        "must be added."
    ),
)

ARTICLES = (_TIDES, _TIDAL_POWER, _WIND, _STORAGE, _BEES, _FLOWERS, _PRINTING, _PAPER)
