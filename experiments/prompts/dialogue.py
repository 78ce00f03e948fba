"""Dialogues with API calls for the bank: orders, bookings, and single function calls to be answered in JSON.

A dialogue is written out to its confirmation and then cut after any turn, so that every stage of it occurs.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .words import PEOPLE, a, fill

Rng = random.Random
ORDERS_PER_SHOP = 10
BOOKINGS_EACH = 8
CALLS_EACH = 3


def prompts(rng: Rng) -> Iterator[str]:
    for _ in range(ORDERS_PER_SHOP):
        for shop in SHOPS:
            yield cut(shop.title, order(shop, rng), rng)
    for _ in range(BOOKINGS_EACH):
        for title, booking in BOOKINGS.items():
            yield cut(title, booking(rng), rng)
    for _ in range(CALLS_EACH):
        for function in FUNCTIONS:
            yield function_call(function, rng)


def cut(title: str, turns: list[str], rng: Rng) -> str:
    return "\n".join([title, *turns[: rng.randint(1, len(turns))]]) + "\n"


def call(name: str, /, **arguments: object) -> str:
    return f"CALL {name} {json.dumps(arguments)}"


def result(name: str, /, **values: object) -> str:
    return f"RESULT {name} {json.dumps(values)}"


def number(rng: Rng) -> str:
    return str(rng.randint(10000, 99999))


# Orders


@dataclass(frozen=True)
class Shop:
    """A counter with a menu and one choice to make, each option with the words a customer has for it."""

    title: str
    items: tuple[str, ...]
    choice: str
    options: Mapping[str, str]
    asks: tuple[str, ...]


def order(shop: Shop, rng: Rng) -> list[str]:
    item, option = rng.choice(shop.items), rng.choice(list(shop.options))
    item_id, order_id, attribute = (
        f"{item.lower().replace(' ', '-')}-{rng.randint(100, 9999)}",
        number(rng),
        shop.choice.lower(),
    )
    slots = {"an_item": [a(item.lower())], "item": [item.lower()], "how": [shop.options[option]]}
    chosen = [{"attribute_id": attribute, "option": option}]
    return [
        f"User: {fill(rng.choice(shop.asks), slots, rng)}",
        call("get_menu_items", query=item),
        result("get_menu_items", menu_items=[{"menu_item_id": item_id, "name": item}]),
        call("get_addons", query=option, menu_item_id=item_id),
        result(
            "get_addons",
            attributes=[{"attribute_id": attribute, "attribute_name": shop.choice, "options": list(shop.options)}],
        ),
        call("add_order_item", menu_item_id=item_id, quantity="1", attributes=chosen),
        result("add_order_item", order_id=order_id, order_item_id=number(rng)),
        f"Assistant: {rng.choice(['Would you like anything else?', 'Anything else for you?', 'Is that everything?'])}",
        f"User: {rng.choice(['No, that is all.', 'That will be all, thanks.', 'Nothing else, thank you.'])}",
    ]


COUNTER_ASKS = (
    "Hi, can I get {an_item} {how}?",
    "I'd like {an_item} {how}, please.",
    "Good morning, {an_item} {how} please",
    "Could you make me {an_item} {how}?",
    "One {item} {how} to go, please.",
    "hello, i want to order {an_item} {how}",
    "Let me have {an_item} {how}, for here.",
)
PHONE_ASKS = (
    "Hello, I'd like to order {an_item} {how} for delivery.",
    "Can you send me {an_item} {how}?",
    "I want {an_item} {how}, and I'll pick it up at six.",
    "Hi there, one {item} {how} please.",
    "Do you still have {an_item} {how}?",
    "Please put me down for {an_item} {how}.",
)

SHOPS = (
    Shop(
        "Coffee order.",
        ("Flat White", "Latte", "Mocha", "Cortado", "Americano", "Cappuccino", "Iced Latte", "Espresso Macchiato"),
        "Milk",
        {
            "Whole Milk": "with whole milk",
            "Oat Milk": "with oat milk",
            "Soy Milk": "with soy milk",
            "No Milk": "with no milk",
        },
        COUNTER_ASKS,
    ),
    Shop(
        "Pizza order.",
        ("Margherita", "Marinara", "Four Cheese Pizza", "Artichoke Pizza", "Mushroom Pizza", "Hawaiian Pizza"),
        "Crust",
        {"Thin": "with a thin crust", "Deep Pan": "with a deep pan crust", "Gluten Free": "with a gluten free crust"},
        PHONE_ASKS,
    ),
    Shop(
        "Bakery order.",
        ("Rye Loaf", "Apple Cake", "Cinnamon Bun", "Almond Croissant", "Cheese Scone", "Lemon Tart"),
        "Packing",
        {"Sliced": "already sliced", "Gift Box": "in a gift box", "Paper Bag": "in a paper bag", "Warm": "warmed up"},
        COUNTER_ASKS,
    ),
    Shop(
        "Sandwich order.",
        ("Tuna Sandwich", "Egg Sandwich", "Falafel Wrap", "Club Sandwich", "Grilled Cheese", "Avocado Bagel"),
        "Bread",
        {"White": "on white bread", "Wholegrain": "on wholegrain bread", "Sourdough": "on sourdough", "Rye": "on rye"},
        COUNTER_ASKS,
    ),
    Shop(
        "Ice cream order.",
        ("Pistachio Scoop", "Lemon Sorbet", "Vanilla Scoop", "Apricot Sundae", "Banana Split", "Espresso Float"),
        "Topping",
        {
            "Whipped Cream": "with whipped cream",
            "Sprinkles": "with sprinkles",
            "Hot Fudge": "with hot fudge",
            "None": "plain",
        },
        COUNTER_ASKS,
    ),
    Shop(
        "Flower order.",
        ("Tulip Bouquet", "Orchid", "Rose Bouquet", "Autumn Wreath", "Lily Arrangement", "Sunflower Bunch"),
        "Wrapping",
        {
            "Brown Paper": "wrapped in brown paper",
            "Vase": "in a vase",
            "Ribbon": "with a ribbon",
            "Basket": "in a basket",
        },
        PHONE_ASKS,
    ),
    Shop(
        "Noodle bar order.",
        ("Ramen", "Udon Soup", "Pad Thai", "Rice Noodle Salad", "Egg Noodle Soup", "Dan Dan Noodle Bowl"),
        "Spice",
        {"Mild": "served mild", "Medium": "with medium spice", "Hot": "extra hot", "None": "without any chili"},
        PHONE_ASKS,
    ),
)


# Bookings: the caller's name and the day come from one place, the rest is each business's own

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
CITIES = ["Lyon", "Bristol", "Porto", "Bergen", "Denver", "Kyoto", "Leipzig", "Montreal"]
YES = ["Yes, please book it.", "That works for me.", "Perfect, I'll take it.", "Sounds good, go ahead."]


def caller(rng: Rng) -> str:
    return rng.choice(PEOPLE).name


def hours(rng: Rng) -> tuple[str, str]:
    early, late = sorted(rng.sample(["09:00", "09:45", "10:30", "11:15", "13:00", "14:30", "16:00", "17:15"], 2))
    return early, late


def appointment(services: Mapping[str, str]) -> Callable[[Rng], list[str]]:
    """A booking by the hour, for a service that a caller has words for."""

    def turns(rng: Rng) -> list[str]:
        service, day, name, (early, late) = rng.choice(list(services)), rng.choice(DAYS), caller(rng), hours(rng)
        words, slot = services[service], rng.choice(["A", "B", "C"]) + str(rng.randint(10, 99))
        asks = (
            f"Hi, I'd like to book {words} on {day}.",
            f"Do you have time for {words} this {day}?",
            f"Hello, this is {name}. Can I come in for {words} on {day}?",
            f"I need {words}, {day} would be best.",
        )
        return [
            f"User: {rng.choice(asks)}",
            call("find_slots", service=service, day=day),
            result("find_slots", slots=[{"slot_id": slot, "start": early}, {"slot_id": f"{slot}x", "start": late}]),
            f"Assistant: On {day} I can offer {early} or {late}. Which suits you better?",
            f"User: {early} please, the name is {name}.",
            call("book_slot", slot_id=slot, name=name),
            result("book_slot", booking_id=number(rng), start=early),
            f"Assistant: Done, {name}. Shall I send you a reminder the day before?",
        ]

    return turns


def restaurant(rng: Rng) -> list[str]:
    day, name, people = rng.choice(DAYS), caller(rng), rng.randint(2, 9)
    time, later = rng.choice([("18:00", "18:30"), ("19:00", "20:15"), ("19:30", "20:00"), ("20:30", "21:00")])
    wish = rng.choice(["on the terrace", "by the window", "in a quiet corner", "near the door", "in the garden"])
    asks = (
        f"A table for {people} on {day} at {time}, please.",
        f"Can we get a table for {people} {wish} on {day} at {time}?",
        f"I'd like to reserve for {people} people, {day} evening around {time}.",
    )
    return [
        f"User: {rng.choice(asks)}",
        call("find_tables", day=day, party_size=people, time=time),
        result("find_tables", tables=[{"table_id": f"T{rng.randint(1, 30)}", "time": later, "place": wish}]),
        f"Assistant: We have a table {wish} at {later}. Would that be all right?",
        f"User: {rng.choice(YES)} The name is {name}.",
        call("book_table", day=day, party_size=people, time=later, name=name),
        result("book_table", booking_id=number(rng), success=True),
    ]


def taxi(rng: Rng) -> list[str]:
    start, end = rng.sample(
        ["the main station", "12 Mill Lane", "the airport", "St. Mary's Hospital", "the harbour", "the Grand Hotel"], 2
    )
    time, price = rng.choice(["now", "06:15", "08:40", "17:30", "22:00"]), f"{rng.randint(9, 48)}.50"
    when = "right now" if time == "now" else f"at {time}"
    return [
        rng.choice(
            [
                f"User: I need a taxi from {start} to {end} {when}.",
                f"User: Can you pick me up at {start} {when}? I'm going to {end}.",
            ]
        ),
        call("get_quote", pickup=start, destination=end, time=time),
        result("get_quote", quote_id=number(rng), price=price, currency="USD"),
        f"Assistant: The ride to {end} will be about ${price}. Shall I book it?",
        f"User: {rng.choice(YES)}",
        call("book_ride", pickup=start, destination=end, time=time, passengers=rng.randint(1, 4)),
        result("book_ride", ride_id=number(rng), driver=caller(rng), minutes=rng.randint(3, 15)),
    ]


def hotel(rng: Rng) -> list[str]:
    city, nights, room, price = (
        rng.choice(CITIES),
        rng.randint(1, 6),
        rng.choice(["single", "double", "family"]),
        rng.randint(60, 220),
    )
    day, stay = rng.choice(DAYS), "one night" if nights == 1 else f"{nights} nights"
    asks = (
        f"I'm looking for a {room} room in {city} from {day}, {stay}.",
        f"Do you have a {room} room free on {day}? We are staying in {city} for {stay}.",
        f"Please find me a {room} room in {city} for {stay}.",
    )
    return [
        f"User: {rng.choice(asks)}",
        call("search_rooms", city=city, room_type=room, nights=nights),
        result(
            "search_rooms", rooms=[{"room_id": f"{room[0].upper()}{rng.randint(100, 499)}", "price_per_night": price}]
        ),
        f"Assistant: There is a {room} room for ${price} a night. Would you like breakfast with it?",
        f"User: {rng.choice(['Yes, with breakfast.', 'No breakfast, thanks.', 'How much is breakfast?'])}",
    ]


def cinema(rng: Rng) -> list[str]:
    film = rng.choice(["The Paper Kite", "Night Shift", "Two Rivers", "Captain Pepper", "The Last Lesson"])
    day, seats, (early, late) = rng.choice(DAYS), rng.randint(2, 6), hours(rng)
    row = rng.choice(["front", "middle", "back"])
    return [
        rng.choice(
            [
                f"User: {seats} tickets for {film} on {day} please.",
                f"User: When do you show {film} on {day}? We are {seats}.",
            ]
        ),
        call("get_showings", film=film, day=day),
        result("get_showings", showings=[{"time": early, "screen": 2}, {"time": late, "screen": 5}]),
        f"Assistant: {film} is on at {early} and at {late}. Which one, and where would you like to sit?",
        f"User: The {late} one, {row} row.",
        call("buy_tickets", film=film, day=day, time=late, seats=seats, row=row),
        result("buy_tickets", success=True, total=f"{seats * 11}.00", code=number(rng)),
    ]


def library(rng: Rng) -> list[str]:
    book, author = rng.choice(
        [("The Salt Road", "Nora Quist"), ("A Map of Dust", "Silvia Branco"), ("Winter Letters", "Emil Hartog"),
         ("Bees for Beginners", "Ida Thorn"), ("The Tall Ships", "Dai Lloyd")]
    )  # fmt: skip
    branch, copy = rng.choice(["Central", "Riverside", "Hill Street", "Old Town"]), number(rng)
    return [
        rng.choice([
            f"User: Do you have {book} by {author}?",
            f"User: I'd like to reserve {book} at the {branch} branch.",
            f"User: Is there a copy of {book} that I can borrow this week?",
        ]),
        call("search_catalog", title=book),
        result("search_catalog",
         copies=[{"copy_id": copy, "branch": branch, "status": rng.choice(["on shelf", "due Friday", "on loan"])}]),
        f"Assistant: There is one copy at {branch}. Shall I put it aside for you?",
        f"User: {rng.choice(['Yes please, my card number is', 'Sure, the card is'])} {number(rng)}.",
        call("place_hold", copy_id=copy, branch=branch),
        result("place_hold", success=True, pick_up_by=rng.choice(DAYS)),
    ]  # fmt: skip


def train(rng: Rng) -> list[str]:
    start, end = rng.sample(["Lyon", "Geneva", "Turin", "Leipzig", "Vienna", "Prague"], 2)
    day, kind, (early, late) = rng.choice(DAYS), rng.choice(["single", "return"]), hours(rng)
    return [
        rng.choice([
            f"User: I need a {kind} ticket from {start} to {end} on {day}.",
            f"User: What trains go from {start} to {end} on {day}?",
            f"User: One {kind} to {end} please, leaving {start} on {day}.",
        ]),
        call("search_trains", origin=start, destination=end, day=day),
        result("search_trains",
         trains=[{"train": f"IC {rng.randint(10, 99)}", "departs": early},
          {"train": f"R {rng.randint(2, 9)}", "departs": late}]),
        f"Assistant: There is a fast train at {early} and a slower one at {late}. Which would you like?",
        f"User: {rng.choice(['The fast one', 'The slower one', 'The first one', 'The cheaper one'])}, second class.",
    ]  # fmt: skip


def car_hire(rng: Rng) -> list[str]:
    city, days, size, price = (
        rng.choice(CITIES),
        rng.randint(2, 12),
        rng.choice(["small", "medium", "large"]),
        rng.randint(25, 90),
    )
    extra = rng.choice(["a child seat", "winter tyres", "a roof box", "a second driver"])
    return [
        rng.choice([
            f"User: I want to rent a {size} car in {city} for {days} days.",
            f"User: How much is a {size} car for {days} days from {city}?",
            f"User: We need a {size} car with {extra} in {city}, {days} days.",
        ]),
        call("search_cars", city=city, size=size, days=days),
        result("search_cars", cars=[{"car_id": number(rng), "size": size, "price_per_day": price}]),
        f"Assistant: A {size} car costs ${price} a day, ${price * days} in all. Do you need anything else?",
        f"User: {rng.choice([f'Yes, {extra}.', f'Could you add {extra}?', 'No, just the car.'])}",
    ]  # fmt: skip


BOOKINGS: dict[str, Callable[[Rng], list[str]]] = {
    "Restaurant booking.": restaurant,
    "Taxi booking.": taxi,
    "Hotel booking.": hotel,
    "Cinema tickets.": cinema,
    "Library desk.": library,
    "Train tickets.": train,
    "Car hire.": car_hire,
    "Hairdresser appointment.": appointment(
        {"haircut": "a haircut", "beard trim": "a beard trim", "colouring": "a colouring",
         "wash and cut": "a wash and cut"}
    ),
    "Dentist appointment.": appointment(
        {"check-up": "a check-up", "cleaning": "a cleaning", "filling": "a filling", "emergency": "an emergency visit"}
    ),
    "Bicycle repair.": appointment(
        {"brake service": "a brake service", "new tyre": "a new tyre", "full service": "a full service"}
    ),
    "Vet appointment.": appointment(
        {"vaccination": "a vaccination for my cat", "check-up": "a check-up for my dog",
         "nail trim": "a nail trim for my rabbit"}
    ),
}  # fmt: skip


# Function calls


@dataclass(frozen=True)
class Function:
    """A function offered to the assistant: parameters as name: (type, description), requests with slots."""

    name: str
    description: str
    parameters: Mapping[str, tuple[str, str]]
    asks: tuple[str, ...]
    slots: Mapping[str, Sequence[object]]
    optional: tuple[str, ...] = ()


def function_call(function: Function, rng: Rng) -> str:
    schema = {
        "name": function.name,
        "description": function.description,
        "parameters": {
            "type": "dict",
            "properties": {name: {"type": t, "description": text} for name, (t, text) in function.parameters.items()},
            "required": [name for name in function.parameters if name not in function.optional],
        },
    }
    request = fill(rng.choice(function.asks), function.slots, rng)
    return f"Functions:\n{json.dumps(schema)}\n\nUser: {request}\nCalls (JSON):"


FUNCTIONS = (
    Function("convert_currency", "Convert an amount of money from one currency to another.",
             {"amount": ("float", "The amount to convert."), "source": ("string", "Currency code to convert from."),
              "target": ("string", "Currency code to convert to.")},
             ("How much is {n} {cur} in {cur2}?", "Convert {n} {cur} to {cur2}, please.",
              "I have {n} {cur}. What is that in {cur2}?"),
             {"n": range(15, 900, 35), "cur": ["USD", "EUR", "CHF", "JPY", "NOK"]}),
    Function("get_weather", "Get the weather forecast for a city.",
             {"city": ("string", "Name of the city."), "day": ("string", "Day of the forecast."),
              "unit": ("string", "celsius or fahrenheit.")},
             ("What will the weather be like in {city} on {day}?", "Will it rain in {city} on {day}? Use celsius.",
              "Give me {day}'s forecast for {city} in fahrenheit."), {"city": CITIES, "day": DAYS}, ("unit",)),
    Function("rectangle_area", "Compute the area of a rectangle.",
             {"width": ("float", "Width of the rectangle."), "height": ("float", "Height of the rectangle.")},
             ("What is the area of a rectangle that is {w} by {h} metres?",
              "A carpet is {w} m wide and {h} m long. How large is it?",
              "Find the areas of two rectangles: {w} by {h} and {w2} by {h2}."),
              {"w": range(2, 15), "h": range(16, 40)}),
    Function("set_timer", "Start a timer.",
     {"minutes": ("integer", "Length in minutes."), "label": ("string", "What the timer is for.")},
             ("Set a timer for {n} minutes for the {what}.", "Remind me in {n} minutes to check the {what}.",
              "I need two timers: {n} minutes for the {what} and {n2} minutes for the {what2}."),
             {"n": [3, 5, 8, 12, 20, 25, 45], "what": ["eggs", "rice", "laundry", "bread", "tea"]}, ("label",)),
    Function("send_email", "Send an e-mail.",
             {"to": ("string", "Address of the recipient."), "subject": ("string", "Subject line."),
              "body": ("string", "Text of the mail.")},
             ("Write to {who}@example.com that the {thing} is {state}.",
              "Mail {who}@example.com, subject '{thing}': it is {state}."),
             {"who": ["lena", "office", "m.silva", "jo"], "thing": ["invoice", "parcel", "contract", "report"],
              "state": ["ready", "late", "confirmed", "missing"]}),
    Function("search_flights", "Search flights between two cities.",
             {"origin": ("string", "City of departure."), "destination": ("string", "City of arrival."),
              "date": ("string", "YYYY-MM-DD."),
              "passengers": ("integer", "Number of passengers. Default is 1.")},
             ("Find flights from {city} to {city2} on 2024-0{m}-1{d}.",
              "I want to fly from {city} to {city2} on 2024-0{m}-2{d} with {p} people."),
             {"city": CITIES, "m": range(1, 10), "d": range(10), "p": range(2, 6)}, ("passengers",)),
    Function("play_music", "Play music in a room.",
     {"query": ("string", "Artist, album or genre."), "room": ("string", "Room of the speaker.")},
             ("Play some {genre} in the {room}.", "Put on {genre} music in the {room}, please.",
              "I'd like to hear {genre} in the {room}."),
             {"genre": ["jazz", "flamenco", "baroque", "ambient", "swing"],
              "room": ["kitchen", "bathroom", "study", "garage"]}),
    Function("set_thermostat", "Set the temperature of a room.",
             {"room": ("string", "The room."), "degrees": ("float", "Temperature in Celsius.")},
             ("Make the {room} {n} degrees warm.", "Set the {room} to {n} degrees and the {room2} to {n2}.",
              "It is cold in the {room}, make it {n}."),
             {"room": ["bedroom", "living room", "hall", "nursery"], "n": range(17, 25)}),
    Function("statistics.mean", "Compute the arithmetic mean of a list of numbers.",
             {"numbers": ("array", "The numbers to average.")},
             ("What is the average of {a}, {b} and {c}?", "Compute the mean of [{a}, {b}, {c}, {d}].",
              "I scored {a}, {b}, {c} and {d}. What is my mean?"),
             {"a": range(40, 60), "b": range(60, 80), "c": range(80, 99), "d": range(20, 40)}),
    Function("geometry.circle_circumference", "Compute the circumference of a circle.",
             {"radius": ("float", "Radius of the circle."), "unit": ("string", "Unit of the radius. Default is cm.")},
             ("What is the circumference of a circle with a radius of {n} cm?",
              "How long is the rim of a wheel with a radius of {n} {unit}?"),
             {"n": range(3, 60), "unit": ["inches", "metres", "mm"]}, ("unit",)),
    Function("loan_payment", "Compute the monthly payment of a loan.",
             {"principal": ("integer", "Amount borrowed."), "rate": ("float", "Yearly interest in percent."),
              "years": ("integer", "Duration.")},
             ("What do I pay each month on ${n}000 over {y} years at {r}%?",
              "Monthly payment for a loan of ${n}000, {r}% interest, {y} years?"),
             {"n": range(20, 400, 15), "y": [5, 10, 15, 20, 30], "r": ["2.5", "3.1", "4", "5.75"]}),
    Function("translate", "Translate a text into another language.",
             {"text": ("string", "The text."), "language": ("string", "The target language.")},
             ("How do you say '{text}' in {lang}?", "Translate '{text}' into {lang} and {lang2}.",
              "Please put '{text}' into {lang}."),
             {"text": ["good evening", "where is the station", "two coffees, please", "see you tomorrow",
               "happy birthday"],
              "lang": ["Spanish", "Polish", "Japanese", "Swahili", "German"]}),
    Function("add_calendar_event", "Add an event to the calendar.",
             {"title": ("string", "Name of the event."), "date": ("string", "The day."), "time": ("string", "HH:MM."),
              "duration": ("integer", "Minutes. Default is 60.")},
             ("Put '{what}' in my calendar on {day} at {t}.", "Schedule {what} for {day} {t}, it takes {n} minutes."),
             {"what": ["team lunch", "piano lesson", "board meeting", "yoga", "budget review"], "day": DAYS,
              "t": ["08:30", "10:00", "12:15", "16:45", "18:00"], "n": [30, 45, 90, 120]}, ("duration",)),
    Function("find_recipe", "Find experiments with given ingredients.",
             {"ingredients": ("array", "Ingredients that must occur."),
              "max_minutes": ("integer", "Longest cooking time.")},
             ("What can I cook with {a} and {b}?", "Find a recipe with {a} and {b} that takes at most {n} minutes.",
              "I have {a}, {b} and only {n} minutes. Any ideas?"),
             {"a": ["lentils", "eggs", "chicken", "tofu"], "b": ["spinach", "leeks", "tomatoes", "mushrooms"],
              "n": [15, 20, 30, 45]}, ("max_minutes",)),
    Function("stock_price", "Get the closing price of a stock.",
             {"symbol": ("string", "Ticker symbol."), "date": ("string", "YYYY-MM-DD. Default is today.")},
             ("What is {sym} trading at?", "Closing price of {sym} on 2023-0{m}-1{d}?",
              "Compare today's prices of {sym} and {sym2}."),
             {"sym": ["ALDR", "BRNX", "CRLG", "DSTL"], "m": range(1, 10), "d": range(10)}, ("date",)),
    Function("bmi", "Compute the body mass index.",
     {"weight": ("float", "Weight in kg."), "height": ("float", "Height in cm.")},
             ("I weigh {w} kg and am {h} cm tall. What is my BMI?", "Body mass index for {h} cm and {w} kg?"),
             {"w": range(50, 100), "h": range(155, 200)}),
    Function("lights.switch", "Switch the lights of a room on or off.",
             {"room": ("string", "The room."), "on": ("boolean", "True for on."),
              "brightness": ("integer", "Percent.")},
             ("Turn on the lights in the {room}.", "Lights off in the {room} and the {room2}, please.",
              "Dim the {room} to {n} percent."),
             {"room": ["kitchen", "hall", "bedroom", "cellar", "attic"], "n": [10, 25, 40, 60]}, ("brightness",)),
    Function("distance_between", "Compute the distance between two cities.",
             {"start": ("string", "First city."), "end": ("string", "Second city."),
              "unit": ("string", "km or miles.")},
             ("How far is it from {city} to {city2}?", "Distance from {city} to {city2} in miles?",
              "How many km are there between {city} and {city2}?"),
             {"city": CITIES}, ("unit",)),
    Function("book_room", "Book a meeting room.",
             {"room": ("string", "Name of the room."), "start": ("string", "HH:MM."),
              "hours": ("integer", "How long."), "people": ("integer", "How many people.")},
             ("Book the {room} room at {t} for {n} hours, we are {p}.",
              "I need the {room} room from {t}, {n} hours, {p} people."),
             {"room": ["Cedar", "Nile", "Ada", "North"], "t": ["09:00", "11:30", "14:00"], "n": [2, 3, 4],
              "p": range(3, 16)}),
    Function("prime_factors", "Return the prime factors of a number.", {"number": ("integer", "The number to factor.")},
             ("What are the prime factors of {n}?", "Factor {n} into primes.",
              "Get the prime factors of {n} and {n2}."),
             {"n": range(60, 2000, 18)}),
    Function("unit_convert", "Convert a quantity between units.",
             {"value": ("float", "The quantity."), "source": ("string", "Unit to convert from."),
              "target": ("string", "Unit to convert to.")},
             ("How many {x} are {n} {y}?", "Convert {n} {y} to {x}."),
             {"n": range(2, 80), "x": ["metres", "kilometres", "centimetres"],
              "y": ["feet", "yards", "miles", "inches"]}),
    Function("library.search", "Search the catalogue of a library.",
             {"author": ("string", "Name of the author."), "title": ("string", "Words of the title."),
              "year": ("integer", "Year of publication.")},
             ("Which books by {who} do you have?", "Find '{title}' by {who}.", "Is there anything by {who} from {y}?"),
             {"who": ["Nora Quist", "Emil Hartog", "Silvia Branco"], "title": ["Winter Letters", "The Salt Road"],
              "y": range(1950, 2015, 5)},
             ("title", "year")),
    Function("track_parcel", "Look up where a parcel is.",
     {"number": ("string", "Tracking number."), "carrier": ("string", "The carrier.")},
             ("Where is my parcel {x}{n}?", "Track {x}{n} with {c}.", "Has {x}{n} arrived yet?"),
             {"x": ["AB", "KX", "ZT"], "n": range(100233, 990000, 7919), "c": ["RedPost", "Swift", "Nordex"]},
             ("carrier",)),
    Function("sunrise", "Get the time of sunrise.",
     {"city": ("string", "The city."), "date": ("string", "YYYY-MM-DD.")},
             ("When does the sun rise in {city} on 2024-0{m}-0{d}?",
              "Sunrise in {city} and {city2} on 2024-0{m}-1{d}?"),
             {"city": CITIES, "m": range(1, 10), "d": range(1, 10)}),
    Function("split_bill", "Split a bill among people.",
             {"total": ("float", "Amount of the bill."), "people": ("integer", "Number of people."),
              "tip": ("float", "Tip in percent. Default is 0.")},
             ("Split ${n} among {p} people.", "The bill is ${n}, we are {p} and tip {t} percent. What does each pay?"),
             {"n": range(36, 300, 12), "p": range(2, 8), "t": [5, 10, 15, 20]}, ("tip",)),
    Function("random_password", "Generate a random password.",
             {"length": ("integer", "Number of characters."),
              "symbols": ("boolean", "Whether to use symbols. Default is false.")},
             ("Make me a password with {n} characters.", "I need {k} passwords of {n} characters with symbols."),
             {"n": range(8, 32, 2), "k": [2, 3]}, ("symbols",)),
    Function("hotel_search", "Search hotels in a city.",
             {"city": ("string", "The city."), "stars": ("integer", "Least number of stars."),
              "max_price": ("integer", "Highest price per night.")},
             ("Hotels in {city} under {n} dollars a night?", "Find a {s} star hotel in {city}.",
              "Show me hotels with at least {s} stars in {city} for less than {n}."),
             {"city": CITIES, "s": [3, 4, 5], "n": range(70, 300, 20)}, ("stars", "max_price")),
    Function("count_letter", "Count how often a letter occurs in a word.",
             {"word": ("string", "The word."), "letter": ("string", "The letter to count.")},
             ("How many times is the letter {l} in '{w}'?", "Count the letter {l} in '{w}' and in '{w2}'."),
             {"l": ["a", "e", "r", "n", "s"], "w": ["lantern", "strawberry", "banana", "committee", "necessary"]}),
    Function("order_food", "Order a dish from a restaurant.",
             {"restaurant": ("string", "Name of the restaurant."), "dish": ("string", "The dish."),
              "quantity": ("integer", "How many portions.")},
             ("Order {n} portions of {dish} from {place}.", "Get me {dish} from {place}.",
              "From {place}: one {dish} and one {dish2}, please."),
             {"n": [2, 3, 4], "dish": ["fried rice", "lasagne", "lentil curry", "fish soup"],
              "place": ["Golden Bowl", "Da Nino", "The Anchor"]},
             ("quantity",)),
    Function("age_in_days", "Compute the age in days.", {"birth_date": ("string", "YYYY-MM-DD.")},
             ("I was born on 19{y}-0{m}-1{d}. How many days old am I?", "How many days ago was 19{y}-0{m}-2{d}?"),
             {"y": range(60, 99), "m": range(1, 10), "d": range(9)}),
    Function("compound_interest", "Compute the final value of an investment.",
             {"principal": ("float", "The amount invested."), "rate": ("float", "Yearly rate in percent."),
              "years": ("integer", "Number of years.")},
             ("What do ${n} become in {y} years at {r}% a year?", "Invest ${n} for {y} years at {r} percent."),
             {"n": range(500, 9000, 250), "y": range(2, 21), "r": ["1.5", "2", "3.5", "6"]}),
    Function("create_reminder", "Create a reminder.",
     {"text": ("string", "What to remember."), "when": ("string", "Day or time.")},
             ("Remind me to {do} on {day}.", "Don't let me forget to {do} on {day} and to {do2} on {day2}."),
             {"do": ["water the plants", "call the bank", "renew the passport", "pay the rent", "feed the cat"],
              "day": DAYS}),
    Function("museum_hours", "Get the opening hours of a museum.",
     {"museum": ("string", "Name of the museum."), "day": ("string", "Day of the week.")},
             ("Is the {m} open on {day}?", "When does the {m} close on {day}?",
              "Opening hours of the {m} and the {m2} on {day}?"),
             {"m": ["Maritime Museum", "House of Clocks", "Museum of Glass", "Toy Museum"], "day": DAYS}),
    Function("fuel_cost", "Estimate the cost of fuel for a trip.",
             {"distance": ("float", "Distance in km."), "consumption": ("float", "Litres per 100 km."),
              "price": ("float", "Price per litre.")},
             ("Fuel for {d} km with {c} litres per 100 km at {p} a litre?",
              "My car needs {c} l per 100 km and fuel is {p}. What do {d} km cost?"),
             {"d": range(120, 1500, 60), "c": ["4.5", "5.8", "6.2", "8"], "p": ["1.45", "1.62", "1.89"]}),
    Function("word_count", "Count the words of a file.",
     {"path": ("string", "Path of the file."), "unique": ("boolean", "Count each word once.")},
             ("How many words are in {f}?", "How many different words does {f} have?",
              "Count the words of {f} and {f2}."),
             {"f": ["notes.txt", "draft.md", "chapter1.txt", "speech.txt"]}, ("unique",)),
    Function("quadratic_roots", "Solve a quadratic equation.",
             {"a": ("integer", "Coefficient of x squared."), "b": ("integer", "Coefficient of x."),
              "c": ("integer", "Constant term.")},
             ("Find the roots of {a}x^2 + {b}x + {c}.", "Solve {a}x^2 + {b}x - {c} = 0."),
             {"a": range(2, 7), "b": range(7, 30), "c": range(2, 20)}),
)  # fmt: skip
