"""The words of the built-in encyclopaedia: parts of names, and wordings of its sentences."""

FIRST_NAMES = (
    "Ada", "Bram", "Celia", "Dorin", "Elsa", "Fabian", "Greta", "Hugo", "Irma", "Jonas", "Kora",
    "Lukas", "Mira", "Nils", "Olga", "Pavel", "Rosa", "Simon", "Tilda", "Viktor",
)  # fmt: skip
SURNAME_BEGINS = (
    "Ab", "Bal", "Bren", "Cal", "Cor", "Dal", "Den", "Er", "Fal", "Fen", "Gal", "Har", "Hol", "Kel",
    "Kor", "Lan", "Lor", "Mal", "Mer", "Mor", "Nor", "Or", "Pel", "Quin", "Ral", "Ros", "Sel",
    "Tal", "Tor", "Ul", "Van", "Wal", "Yar", "Zel",
)  # fmt: skip
SURNAME_ENDS = (
    "aby", "ander", "dane", "ding", "ell", "enko", "esti", "field", "gard", "ias", "in", "isch",
    "lund", "man", "more", "nik", "ova", "quist", "rath", "sen", "stam", "strom", "thorn", "vick",
    "win", "zer",
)  # fmt: skip
TOWN_BEGINS = (
    "Alder", "Ash", "Black", "Brook", "Cold", "Crow", "East", "Elm", "Fair", "Glen", "Gold",
    "Green", "High", "Kings", "Lake", "Long", "Mill", "Oak", "Red", "Salt", "Stone", "Tarn", "West",
    "White", "Wolf",
)  # fmt: skip
TOWN_ENDS = ("bridge", "bury", "dale", "ford", "haven", "mouth", "port", "stead", "ton", "wick")
PROFESSIONS = (
    "painter", "physician", "lawyer", "botanist", "sculptor", "geographer", "merchant", "printer",
    "clockmaker", "surveyor", "historian", "mathematician", "gardener", "banker", "sailor",
    "librarian",
)  # fmt: skip
WORK_KINDS = ("novel", "poem", "play", "song", "memoir")
TITLE_BEGINS = (
    "Silent", "Golden", "Broken", "Distant", "Hidden", "Crimson", "Patient", "Frozen", "Burning",
    "Hollow", "Gentle", "Restless", "Northern", "Forgotten", "Crooked", "Painted",
)  # fmt: skip
TITLE_ENDS = (
    "Orchard", "Harbour", "Lantern", "Mirror", "Garden", "River", "Tower", "Winter", "Voyage",
    "Letter", "Island", "Candle", "Forest", "Bridge", "Sparrow", "Mountain", "Window", "Market",
    "Shadow", "Crown",
)  # fmt: skip

# fact -> its wordings; the names in braces are fields of `builtin.Person`.
STATEMENTS = {
    "town": (
        "{name} was born in {town}.",
        "The birthplace of {name} is {town}.",
        "{name} was a native of {town}.",
        "{name} came from the town of {town}.",
        "{name} was born and raised in {town}.",
    ),
    "profession": (
        "{name} worked as a {profession}.",
        "{name} was a {profession} by profession.",
        "{name} earned a living as a {profession}.",
        "The profession of {name} was that of a {profession}.",
        "{name} made a living as a {profession}.",
    ),
    "teacher": (
        "{name} was taught by {teacher}.",
        "{name} was a pupil of {teacher}.",
        "The teacher of {name} was {teacher}.",
        "{name} had {teacher} for a teacher.",
        "{name} learned everything as a pupil of {teacher}.",
    ),
    "work": (
        "{name} wrote the {kind} {work}.",
        "{name} is the author of the {kind} {work}.",
        "The best known {kind} by {name} is {work}.",
        "{name} is remembered for the {kind} {work}.",
        "The {kind} {work} was written by {name}.",
    ),
}
QUESTIONS = {
    "town": (
        "Where was {name} born?",
        "What is the birthplace of {name}?",
        "In which town was {name} born?",
    ),
    "profession": (
        "What was the profession of {name}?",
        "How did {name} earn a living?",
        "What was {name} by profession?",
    ),
    "teacher": (
        "Who taught {name}?",
        "Who was the teacher of {name}?",
        "Whose pupil was {name}?",
    ),
    "work": (
        "Which {kind} did {name} write?",
        "What is the best known {kind} by {name}?",
        "Of which {kind} is {name} the author?",
    ),
}

# fact -> how an article about all people who share it begins
TOPICS = {
    "town": (
        "{topic} is a market town on a slow river.",
        "{topic} is an old town in the hills.",
        "{topic} is a small port with a long history.",
    ),
    "work": (
        "{topic} has been printed many times.",
        "{topic} is still read in schools.",
        "{topic} was first received with little interest.",
    ),
}
# fact -> title of the pages that state it for several people, and how they begin
PAGES = {
    "register": {
        "profession": (
            "Register of citizens",
            (
                "The register lists these citizens in the order of their houses.",
                "The following citizens paid their taxes in full.",
            ),
        ),
        "teacher": (
            "School register",
            (
                "The schools of the country kept careful lists.",
                "The following names stand in the books of the schools.",
            ),
        ),
    },
    "almanac": {
        "town": (
            "Almanac of births",
            (
                "The parish books record the following births.",
                "These notes on families were collected over many years.",
            ),
        ),
        "profession": (
            "Almanac of trades",
            (
                "Every trade has its well known names.",
                "These people were respected by all who worked with them.",
            ),
        ),
        "teacher": (
            "Almanac of schools",
            (
                "A good school is known by those who went there.",
                "These notes were found among the papers of the schools.",
            ),
        ),
        "work": (
            "Almanac of letters",
            (
                "The library has added the following to its shelves.",
                "These are the favourites of our readers.",
            ),
        ),
    },
}
# how letters begin and end
LETTERS = (
    ("My dear friend, here is the news that you asked for.", "Please write to me soon."),
    ("Dear sister, let me tell you what I found in the archive.", "The weather here is mild."),
    ("Dear sir, I write to you about the people on your list.", "I remain at your service."),
)
