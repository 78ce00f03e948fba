"""Word problems for the bank: one function a situation, the numbers drawn so that the answer comes out whole."""

import random
from collections.abc import Callable, Iterator
from fractions import Fraction

from .words import PEOPLE, Person, a, count

Rng = random.Random
ROUNDS = 7  # problems drawn from each situation
SITUATIONS: list[Callable[[Rng], str]] = []


def prompts(rng: Rng) -> Iterator[str]:
    """Every situation in turn, `ROUNDS` times over."""
    for _ in range(ROUNDS):
        for situation in SITUATIONS:
            yield situation(rng)


def situation(function: Callable[[Rng], str]) -> Callable[[Rng], str]:
    SITUATIONS.append(function)
    return function


def person(r: Rng) -> Person:
    return r.choice(PEOPLE)


def two_people(r: Rng) -> tuple[Person, Person]:
    one, other = r.sample(PEOPLE, 2)
    return one, other


def times(k: int) -> str:
    return {2: "twice", 3: "three times", 4: "four times", 5: "five times"}[k]


# Shopping and money


@situation
def change(r: Rng) -> str:
    p, n, price = person(r), r.randint(2, 8), r.randint(2, 11)
    item = r.choice(["notebooks", "lemons", "toy cars", "sketch pads", "candles", "bus passes", "light bulbs"])
    note = next(bill for bill in (20, 50, 100) if bill > n * price)
    ask = r.choice([f"How much change does {p.he} get back?", f"How many dollars of change will {p.he} receive?"])
    return f"{p.name} buys {n} {item} at ${price} each and pays with a ${note} bill. {ask}"


@situation
def two_kinds_of_goods(r: Rng) -> str:
    p = person(r)
    (one, cost), (two, dear) = r.sample(
        [("scarf", 9), ("mug", 6), ("puzzle", 14), ("hat", 12), ("book", 15), ("belt", 18), ("poster", 7)], 2
    )
    n, m = r.randint(2, 6), r.randint(2, 5)
    place = r.choice(["At the market", "At a school fair", "In the museum shop", "At a summer sale"])
    return (
        f"{place} a {one} costs ${cost} and a {two} costs ${dear}. {p.name} buys {n} {one}s and {m} {two}s "
        f"as presents. How much does {p.he} spend in total?"
    )


@situation
def discount(r: Rng) -> str:
    p, price, percent = person(r), 20 * r.randint(2, 12), r.choice([10, 15, 20, 25, 30, 35, 40])
    item = r.choice(["coat", "tent", "desk lamp", "guitar", "suitcase", "pair of boots", "bookshelf"])
    extra = r.choice(["", f" {p.He} also has a coupon for $5 off the sale price."])
    return (
        f"{a(item).capitalize()} that normally costs ${price} is on sale for {percent}% off.{extra} "
        f"How much will {p.name} pay for it?"
    )


@situation
def price_rise(r: Rng) -> str:
    price, percent, n = 20 * r.randint(3, 15), r.choice([5, 10, 15, 20, 25]), r.randint(2, 4)
    what = r.choice(["A season ticket", "A case of oranges", "A ski pass", "A music lesson package", "A drum of paint"])
    return (
        f"{what} used to cost ${price}. This year the price went up by {percent}%. "
        f"How much do {count(n)} of them cost now?"
    )


@situation
def cheaper_shop(r: Rng) -> str:
    p, n, price, less = person(r), r.randint(4, 12), r.randint(8, 20), r.randint(2, 5)
    item = r.choice(["bags of compost", "tins of paint", "rolls of wire", "sacks of rice", "boxes of tiles"])
    return (
        f"{p.name} needs {n} {item}. The first shop asks ${price} for each, and the second shop asks ${less} less. "
        f"How much does {p.he} save by buying everything at the second shop?"
    )


@situation
def saving_up(r: Rng) -> str:
    p, weeks, rate, have = person(r), r.randint(4, 15), r.randint(6, 25), r.randint(10, 60)
    item = r.choice(["bicycle", "telescope", "keyboard", "skateboard", "camera", "violin", "sewing machine"])
    return (
        f"{p.name} wants to buy a {item} that costs ${have + weeks * rate}. {p.He} already has ${have} and saves "
        f"${rate} every week. In how many weeks will {p.he} be able to buy it?"
    )


@situation
def chores(r: Rng) -> str:
    p, lawn, dog, n, m = person(r), r.randint(8, 15), r.randint(3, 6), r.randint(2, 5), r.randint(4, 9)
    spent = r.randint(5, 15)
    return (
        f"{p.name} earns ${lawn} for mowing a lawn and ${dog} for walking a dog. Last month {p.he} mowed {n} lawns "
        f"and walked dogs {m} times, then spent ${spent} on a film ticket. How much money does {p.he} have left?"
    )


@situation
def wages(r: Rng) -> str:
    p, rate, extra = person(r), 2 * r.randint(6, 14), r.randint(2, 8)
    job = r.choice(["at a bakery", "in a garden centre", "at the front desk of a hotel", "in a warehouse", "at a farm"])
    return (
        f"{p.name} works {job} and earns ${rate} an hour for the first 40 hours of a week. For every hour "
        "beyond that "
        f"{p.he} is paid one and a half times as much. How much does {p.he} earn in a week of {40 + extra} hours?"
    )


@situation
def taxi(r: Rng) -> str:
    p, base, mile, miles = person(r), r.randint(3, 6), r.randint(2, 4), r.randint(4, 18)
    tip = r.choice(["", f" {p.He} also leaves a tip of $3."])
    return (
        f"A taxi charges ${base} to start the ride and ${mile} for every mile. {p.name} rides {miles} miles to "
        f"{r.choice(['the station', 'the airport', 'a wedding', 'the hospital'])}.{tip} How much does the trip cost?"
    )


@situation
def phone_plan(r: Rng) -> str:
    p, base, included, over = person(r), r.randint(12, 30), r.choice([100, 200, 300]), r.randint(10, 60)
    return (
        f"A phone plan costs ${base} a month and includes {included} minutes of calls. Every further minute costs "
        f"10 cents. In March {p.name} talked for {included + 10 * over} minutes. What was {p.his} bill for that "
        "month?"
    )


@situation
def parking(r: Rng) -> str:
    p, first, later, hours = person(r), r.randint(3, 7), r.randint(2, 3), r.randint(3, 9)
    return (
        f"A car park charges ${first} for the first hour and ${later} for each hour after that. {p.name} leaves "
        f"{p.his} car there for {hours} hours. How much does {p.he} have to pay?"
    )


@situation
def resale(r: Rng) -> str:
    p, n, cost, gain = person(r), r.randint(5, 30), r.randint(4, 20), r.randint(2, 9)
    item = r.choice(
        ["second-hand lamps", "old radios", "plain T-shirts", "wooden frames", "flower pots", "wicker chairs"]
    )
    work = r.choice(["cleans them up", "repaints them", "decorates them"])
    return (
        f"{p.name} buys {n} {item} for ${cost} each, {work}, and sells all of them for ${cost + gain} each. "
        f"What is {p.his} profit?"
    )


@situation
def coins(r: Rng) -> str:
    p, quarters, dimes, nickels = person(r), r.randint(3, 15), r.randint(3, 20), r.randint(2, 12)
    holder = r.choice(["piggy bank", "coat pocket", "glass jar", "desk drawer"])
    return (
        f"In {p.his} {holder}, {p.name} finds {quarters} quarters, {dimes} dimes and {nickels} nickels. "
        f"How many cents is that altogether?"
    )


@situation
def restaurant_bill(r: Rng) -> str:
    friends, share = r.randint(3, 6), 6 * r.randint(2, 5)
    bill = friends * share * 5 // 6  # the bill with a 20% tip splits evenly
    meal = r.choice(["a birthday dinner", "a Sunday lunch", "a meal of noodles and dumplings", "a farewell brunch"])
    return (
        f"{count(friends).capitalize()} friends go out for {meal}. The bill comes to ${bill}, and they add a "
        "20% tip. "
        f"If they split the total equally, how much does each of them pay?"
    )


@situation
def simple_interest(r: Rng) -> str:
    p, principal, rate, years = person(r), 100 * r.randint(4, 30), r.randint(2, 6), r.randint(2, 5)
    return (
        f"{p.name} puts ${principal} into an account that pays {rate}% simple interest a year. "
        f"How much money will be in the account after {count(years)} years?"
    )


@situation
def tickets(r: Rng) -> str:
    adult, child, n, m = r.randint(9, 18), r.randint(3, 8), r.randint(2, 6), r.randint(3, 12)
    place = r.choice(["zoo", "aquarium", "circus", "science museum", "steam railway", "botanical garden"])
    return (
        f"Tickets for the {place} cost ${adult} for an adult and ${child} for a child. A group of {n} adults and "
        f"{m} children visits on Saturday. How much do they pay for tickets altogether?"
    )


@situation
def group_discount(r: Rng) -> str:
    price, n = r.randint(6, 14), 10 * r.randint(2, 6)
    return (
        f"A boat tour costs ${price} a person, but groups of 20 or more get a 10% discount on the whole price. "
        f"A school books the tour for {n} pupils. What does the school pay?"
    )


@situation
def matched_donation(r: Rng) -> str:
    p, n, gift, match = person(r), r.randint(8, 40), r.randint(2, 9), r.choice([2, 3])
    cause = r.choice(["an animal shelter", "a food bank", "a new playground", "the village library"])
    return (
        f"{p.name} collects money for {cause}. {n} neighbours give ${gift} each, and a local company gives "
        f"{times(match)} as much as all the neighbours together. How much money is collected?"
    )


@situation
def stall(r: Rng) -> str:
    p = person(r)
    one, two, three = r.sample(["lemonade", "iced tea", "apple juice", "hot chocolate", "ginger beer", "coffee"], 3)
    x, y, k = r.randint(8, 25), r.randint(5, 20), r.choice([2, 3])
    price = r.randint(2, 4)
    return (
        f"At {p.his} stall {p.name} sold {x} cups of {one}, {y} more cups of {two} than of {one}, and {times(k)} as "
        f"many cups of {three} as of {one}. Every cup costs ${price}. How much money did {p.he} take in?"
    )


@situation
def rent(r: Rng) -> str:
    n, each, heat = r.randint(3, 5), 10 * r.randint(25, 60), 10 * r.randint(3, 12)
    return (
        f"{count(n).capitalize()} students share a flat. The rent is ${n * each - heat} a month and heating and "
        "water "
        f"cost another ${heat}. They divide everything equally. What does each student pay in half a year?"
    )


@situation
def left_after_purchase(r: Rng) -> str:
    p, left, cost = person(r), r.randint(3, 40), r.randint(5, 70)
    item = r.choice(["kite", "haircut", "new lamp", "birthday card and a cake", "train ticket", "bunch of tulips"])
    ask = r.choice(["How much did {he} have at first?", "How much money did {he} start with?"])
    return f"After paying ${cost} for a {item}, {p.name} has ${left} left. {ask.format(he=p.he)}"


# Sharing, counting, comparing


@situation
def share_equally(r: Rng) -> str:
    p, friends, each = person(r), r.randint(2, 8), r.randint(3, 12)
    food = r.choice(["walnuts", "strawberries", "biscuits", "grapes", "toffees", "dried figs"])
    return (
        f"{p.name} has {(friends + 1) * each} {food} and shares them equally among {p.his} {count(friends)} friends "
        f"and {p.himself}. How many {food} does each person get?"
    )


@situation
def packing(r: Rng) -> str:
    size, boxes, rest = r.randint(6, 15), r.randint(5, 30), r.randint(1, 5)
    what, box = r.choice([("eggs", "cartons"), ("candles", "boxes"), ("jam jars", "crates"), ("tennis balls", "tubes")])
    ask = r.choice([f"How many {what} are left over?", f"How many {box} are full?"])
    return f"A worker packs {size * boxes + rest} {what} into {box} of {size}, as many as can be filled. {ask}"


@situation
def buses_needed(r: Rng) -> str:
    seats, buses, adults = r.choice([32, 40, 45, 50]), r.randint(3, 7), r.randint(5, 12)
    pupils = seats * buses - r.randint(2, 20) - adults
    return (
        f"{pupils} pupils and {adults} teachers go on a trip to the coast. Each bus has {seats} seats. "
        f"How many buses does the school have to hire?"
    )


@situation
def three_collectors(r: Rng) -> str:
    one, two, three = r.sample(PEOPLE, 3)
    n, k, more = r.randint(6, 30), r.choice([2, 3]), r.randint(3, 12)
    thing = r.choice(["shells", "stamps", "postcards", "badges", "marbles", "pressed leaves"])
    return (
        f"{one.name} has {n} {thing}. {two.name} has {times(k)} as many as {one.name}, and {three.name} has "
        f"{more} more "
        f"than {two.name}. How many {thing} do the three of them have together?"
    )


@situation
def sum_and_difference(r: Rng) -> str:
    one, two = two_people(r)
    small, more = r.randint(8, 60), r.randint(4, 20)
    did, do, thing = r.choice(
        [
            ("picked", "pick", "apples"),
            ("read", "read", "pages"),
            ("sold", "sell", "raffle tickets"),
            ("planted", "plant", "tulip bulbs"),
            ("folded", "fold", "napkins"),
        ]
    )
    return (
        f"Together {one.name} and {two.name} {did} {2 * small + more} {thing}. {one.name} {did} {more} more than "
        f"{two.name}. How many {thing} did {two.name} {do}?"
    )


@situation
def traded(r: Rng) -> str:
    p, q = two_people(r)
    n, gave, got = r.randint(30, 80), r.randint(5, 20), r.randint(2, 15)
    thing = r.choice(["marbles", "trading cards", "stickers", "beads"])
    return (
        f"{p.name} had {n} {thing}. {p.He} gave {gave} of them to {q.name}, who gave {p.him} {got} of "
        f"{q.his} own in return. How many {thing} does {p.name} have now?"
    )


@situation
def missing_part(r: Rng) -> str:
    start, end = r.randint(12, 60), r.randint(3, 30)
    place, who = r.choice(
        [
            ("in the reading room", "people"),
            ("on the ferry", "passengers"),
            ("on the pond", "ducks"),
            ("in the waiting room", "patients"),
            ("on the skating rink", "skaters"),
        ]
    )
    return (
        f"There were {start} {who} {place}. Some more arrived, and then there were {start + end} {who} {place}. "
        f"How many {who} arrived?"
    )


@situation
def bus_stops(r: Rng) -> str:
    start, off, on = r.randint(20, 45), r.randint(4, 15), r.randint(2, 18)
    last = r.randint(2, 5)
    vehicle = r.choice(["tram", "bus", "trolleybus", "water taxi"])
    return (
        f"{a(vehicle).capitalize()} leaves the depot with {start} passengers. At the first stop {off} get off "
        f"and {on} "
        f"get on. At the second stop {last} get off and nobody gets on. How many passengers are there now?"
    )


@situation
def how_many_more(r: Rng) -> str:
    p, q = two_people(r)
    thing, other = r.sample(["cherries", "plums", "chestnuts", "mushrooms", "pine cones", "acorns"], 2)
    w, x, y, z = r.randint(10, 40), r.randint(10, 40), r.randint(41, 90), r.randint(10, 40)
    return (
        f"{p.name} gathered {w} {thing} and {x} {other}. {q.name} gathered {y} {thing} and {z} {other}. "
        f"How many more {thing} did {q.name} gather than {p.name}?"
    )


@situation
def fraction_given_away(r: Rng) -> str:
    p, q = two_people(r)
    part = r.choice([2, 3, 4, 5])
    names = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}
    total, gave = part * r.randint(4, 15), r.randint(2, 4)
    thing = r.choice(["seashells", "cookies", "comic books", "pencils", "plum dumplings"])
    tail = r.choice(["to the neighbours", "to a cousin", "to the school fair"])
    return (
        f"{p.name} had {total} {thing}. {p.He} gave {names[part]} of them to {q.name} and {gave} more {tail}. "
        f"How many {thing} did {p.name} keep?"
    )


@situation
def legs(r: Rng) -> str:
    hens, goats = r.randint(5, 30), r.randint(3, 20)
    birds, beasts = r.choice([("hens", "goats"), ("ducks", "sheep"), ("geese", "cows"), ("turkeys", "ponies")])
    return (
        f"A farmer keeps {birds} and {beasts}, {hens + goats} animals in all. Together they have "
        f"{2 * hens + 4 * goats} legs. "
        f"How many {beasts} does the farmer have?"
    )


@situation
def rows_of_chairs(r: Rng) -> str:
    rows, seats = r.randint(8, 20), r.randint(10, 24)
    empty = r.randint(7, 40)
    event = r.choice(["a concert", "a lecture", "the school play", "a town meeting"])
    return (
        f"For {event} the hall is set up with {rows} rows of {seats} chairs. When it begins, {empty} chairs are "
        "empty. "
        f"How many people are sitting in the hall?"
    )


@situation
def class_percent(r: Rng) -> str:
    n, percent = 20 * r.randint(2, 15), r.choice([15, 20, 30, 35, 40, 45, 60, 65])
    group, trait = r.choice(
        [
            ("members of a sports club", "play tennis"),
            ("pupils of a school", "walk to school"),
            ("employees of a company", "come by bicycle"),
            ("guests of a hotel", "order breakfast"),
            ("visitors of a fair", "ride the big wheel"),
        ]
    )
    return f"{percent}% of the {n} {group} {trait}. How many of them do not?"


@situation
def defects(r: Rng) -> str:
    n, percent = 100 * r.randint(3, 25), r.randint(2, 8)
    item = r.choice(["light bulbs", "zips", "phone cases", "ball bearings", "plates"])
    price = r.randint(2, 6)
    return (
        f"A factory makes {n} {item} a day, and {percent}% of them turn out to be faulty. The others are sold for "
        f"${price} each. How much money does a day's work bring in?"
    )


@situation
def tanks(r: Rng) -> str:
    p, n, each, more = person(r), r.randint(3, 6), r.randint(5, 12), r.randint(2, 9)
    return (
        f"{p.name} has {count(n)} fish tanks with {each} fish in each and one large tank with {more} more fish "
        "than a small "
        f"one. How many fish does {p.he} have in total?"
    )


@situation
def stickers(r: Rng) -> str:
    p, per, pages, have = person(r), r.choice([6, 8, 9, 12]), r.randint(10, 24), r.randint(12, 55)
    return (
        f"An album has {pages} pages, and each page holds {per} stickers. So far {p.name} has glued in {have} "
        "stickers. "
        f"How many more does {p.he} need to fill it?"
    )


@situation
def doubling(r: Rng) -> str:
    start, days = r.randint(2, 9), r.randint(3, 6)
    what = r.choice(
        [
            ("The number of lily pads on a pond", "lily pads"),
            ("The number of bacteria in a dish", "bacteria"),
            ("The number of members of a puzzle club", "members"),
        ]
    )
    step = {"lily pads": "day", "bacteria": "hour", "members": "month"}[what[1]]
    return (
        f"{what[0]} doubles every {step}. At the start there are {start} {what[1]}. "
        f"How many are there after {count(days)} {step}s?"
    )


@situation
def inheritance(r: Rng) -> str:
    ratio = r.choice([(1, 2, 3), (2, 3, 4), (1, 3, 5), (2, 3, 5)])
    unit = 10 * r.randint(3, 30)
    names = [p.name for p in r.sample(PEOPLE, 3)]
    return (
        f"{names[0]}, {names[1]} and {names[2]} share ${sum(ratio) * unit} in the ratio "
        f"{ratio[0]}:{ratio[1]}:{ratio[2]}. How much does {names[2]} receive?"
    )


# Cooking and baking


@situation
def batches(r: Rng) -> str:
    p, size, cups, k = person(r), r.choice([12, 16, 20, 24]), r.randint(2, 4), r.randint(3, 8)
    thing = r.choice(["muffins", "scones", "oat cookies", "bread rolls"])
    return (
        f"A batch of {size} {thing} needs {cups} cups of flour. {p.name} has to bake {size * k} {thing} for a party. "
        f"How many cups of flour does {p.he} need?"
    )


@situation
def recipe_scaling(r: Rng) -> str:
    p, serves, k = person(r), r.choice([4, 6, 8]), r.randint(2, 5)
    dish, thing = r.choice(
        [
            ("vegetable soup", "carrots"),
            ("potato salad", "potatoes"),
            ("apple crumble", "apples"),
            ("tomato sauce", "tomatoes"),
            ("onion tart", "onions"),
        ]
    )
    n = r.randint(3, 9)
    return (
        f"A recipe for {dish} serves {serves} people and uses {n} {thing}. {p.name} cooks it for {serves * k} "
        "guests. "
        f"How many {thing} should {p.he} buy?"
    )


@situation
def pizza(r: Rng) -> str:
    n, slices, people = r.randint(3, 6), r.choice([6, 8, 10]), r.randint(7, 10)
    each = n * slices // people
    each = max(1, each - r.randint(0, 1))
    return (
        f"For a games evening {count(n)} pizzas are cut into {slices} slices each. {people} people eat "
        f"{count(each)} {'slice' if each == 1 else 'slices'} each. How many slices are left?"
    )


@situation
def dozen_eggs(r: Rng) -> str:
    p, hens, dozens = person(r), r.randint(6, 20), r.randint(3, 12)
    total = 7 * hens
    dozens = min(dozens, total // 12)
    return (
        f"{p.name} has {hens} hens, and every hen lays one egg a day. At the end of the week {p.he} sells "
        f"{count(dozens)} dozen eggs and keeps the rest. How many eggs does {p.he} keep?"
    ).replace("one dozen eggs", "a dozen eggs")


@situation
def mixing_paint(r: Rng) -> str:
    p, x, y, k = person(r), r.randint(1, 4), r.randint(5, 7), r.randint(2, 6)
    one, two, mix = r.choice([("blue", "yellow", "green"), ("red", "white", "pink"), ("red", "yellow", "orange")])
    return (
        f"To get the right shade of {mix}, {p.name} mixes {one} and {two} paint in the ratio {x}:{y}. "
        f"How many litres of {two} paint does {p.he} need for {(x + y) * k} litres of {mix}?"
    )


@situation
def jam(r: Rng) -> str:
    p, kilos, jars, price = person(r), r.randint(3, 12), r.randint(2, 4), r.randint(3, 6)
    fruit = r.choice(["blackberries", "apricots", "raspberries", "gooseberries"])
    cost = r.randint(1, 2)
    return (
        f"One kilogram of {fruit} gives {count(jars)} jars of jam. {p.name} makes jam from {kilos} kilograms, "
        "sells every jar for "
        f"${price}, and has spent ${cost} on each empty jar. How much does {p.he} gain?"
    )


# Travel, speed and time


@situation
def two_legs(r: Rng) -> str:
    p, v, w, h, k = person(r), 5 * r.randint(8, 14), 5 * r.randint(3, 7), r.randint(2, 5), r.randint(2, 4)
    return (
        f"{p.name} drives for {count(h)} hours on the motorway at {v} miles per hour and then for {count(k)} "
        "hours on "
        f"country roads at {w} miles per hour. How many miles does {p.he} travel?"
    )


@situation
def meeting_trains(r: Rng) -> str:
    v, w, h = 5 * r.randint(8, 16), 5 * r.randint(8, 16), r.randint(2, 6)
    what, places = r.choice(
        [("trains", "cities"), ("cyclists", "villages"), ("lorries", "towns"), ("boats", "harbours")]
    )
    if what in ("cyclists", "boats"):
        v, w = v // 5, w // 5
    return (
        f"Two {what} start at the same time from two {places} that are {(v + w) * h} km apart and travel "
        "towards each other. "
        f"One moves at {v} km/h, the other at {w} km/h. After how many hours do they meet?"
    )


@situation
def return_trip(r: Rng) -> str:
    p, v, h = person(r), 6 * r.randint(5, 9), r.randint(2, 4)
    place = r.choice(["the lake", "the mountains", "a trade fair", "the border"])
    return (
        f"{p.name} takes {count(2 * h)} hours to drive to {place} at {v} km/h. On the way back {p.he} takes the "
        "new road, "
        f"which is just as long, and drives at {2 * v} km/h. How many hours does the way back take?"
    )


@situation
def detour(r: Rng) -> str:
    p, v, h, less = person(r), 5 * r.randint(6, 14), r.randint(2, 5), r.randint(5, 25)
    return (
        f"{p.name} drives to a customer in {count(h)} hours at {v} km/h and comes home by a road that is {less} "
        "km shorter. "
        f"How many kilometres does {p.he} drive in total?"
    )


@situation
def fuel(r: Rng) -> str:
    p, per, trips, price = person(r), r.choice([5, 6, 8]), r.randint(2, 9), r.randint(1, 2)
    vehicle = r.choice(["van", "car", "delivery truck", "motorhome"])
    return (
        f"A {vehicle} uses {per} litres of fuel for every 100 km. Fuel costs ${price}.50 a litre. "
        f"How much does the fuel for a journey of {200 * trips} km cost {p.name}?"
    )


@situation
def commute(r: Rng) -> str:
    p, miles, days, weeks = person(r), r.randint(2, 12), r.randint(3, 5), r.randint(2, 6)
    way = r.choice(["cycles", "walks", "jogs", "rides a horse"])
    if way in ("walks", "jogs"):
        miles = min(miles, 4)
    return (
        f"{p.name} {way} {miles} miles to work and the same way home, {count(days)} days a week. "
        f"How many miles is that in {count(weeks)} weeks?"
    )


@situation
def laps(r: Rng) -> str:
    p, lap, minutes = person(r), r.choice([200, 250, 400, 500]), r.randint(2, 4)
    n = r.randint(4, 12)
    return (
        f"A running track is {lap} metres long. {p.name} runs {n} laps and needs {minutes} minutes for each. "
        f"How many metres does {p.he} run, and how long does it take {p.him}?"
    )


@situation
def swimming(r: Rng) -> str:
    p, pool = person(r), r.choice([25, 50])
    km, done = r.randint(1, 3), r.randint(5, 18)
    return (
        f"{p.name} wants to swim {km} km in a pool that is {pool} metres long. So far {p.he} has swum {done} "
        "lengths. "
        f"How many lengths does {p.he} still have to swim?"
    )


@situation
def film_end(r: Rng) -> str:
    hour, minute, length = r.randint(1, 8), r.choice([5, 10, 15, 20, 30, 40, 45]), 5 * r.randint(17, 32)
    ads = r.choice([10, 15, 20])
    what = r.choice(["film", "play", "nature documentary"])
    return (
        f"The doors of the theatre open at {hour}:{minute:02d} p.m. After {ads} minutes the {what} begins, and "
        "it lasts "
        f"{length} minutes. At what time does it end?"
    )


@situation
def bell(r: Rng) -> str:
    every, hours = r.choice([5, 10, 12, 15, 20, 30]), r.randint(2, 8)
    what = r.choice(
        ["A lighthouse sounds its horn", "A factory bell rings", "A sprinkler starts", "A shuttle bus leaves"]
    )
    return f"{what} every {every} minutes. How often is that in {count(hours)} hours, not counting the start?"


@situation
def blinking(r: Rng) -> str:
    x, y = r.choice([(4, 6), (6, 8), (6, 9), (8, 12), (10, 15), (9, 12), (12, 15), (4, 10)])
    what = r.choice(["Two buoys flash", "Two neon signs blink", "Two church clocks chime", "Two metronomes click"])
    unit = "minutes" if "chime" in what else "seconds"
    return (
        f"{what} at the same moment. From then on one of them does so every {x} {unit} and the other every {y} "
        f"{unit}. "
        f"After how many {unit} do they coincide again?"
    )


@situation
def homework_time(r: Rng) -> str:
    p, maths, less, extra = person(r), 10 * r.randint(3, 6), 5 * r.randint(1, 4), r.randint(2, 4)
    subject, other = r.sample(["history", "French", "biology", "geography", "music theory"], 2)
    return (
        f"{p.name} spends {maths} minutes on {p.his} mathematics homework, {less} minutes less on {subject}, and "
        f"half as long on {other} as on mathematics. How many minutes does {p.he} work if {p.he} takes "
        f"{count(extra)} breaks of 5 minutes as well?"
    )


@situation
def time_zones(r: Rng) -> str:
    p, q = two_people(r)
    ahead, hour, length = r.randint(2, 9), r.randint(1, 9), r.randint(2, 5)
    return (
        f"{p.name} lives in a city whose clocks are {count(ahead)} hours ahead of the city where {q.name} lives. "
        f"{q.name} calls at {hour}:00 p.m. by {q.his} own clock, and they talk for {10 * length} minutes. "
        f"What time is it for {p.name} when they hang up?"
    )


# Work and rates


@situation
def machine_rate(r: Rng) -> str:
    rate, hours, stop = r.randint(5, 40), r.randint(2, 8), 10 * r.randint(1, 4)
    what, verb = r.choice(
        [("bottles", "fills"), ("labels", "prints"), ("envelopes", "seals"), ("buttons", "stamps out")]
    )
    return (
        f"A machine {verb} {rate} {what} a minute. During a shift of {count(hours)} hours it stands still for "
        f"{stop} minutes. "
        f"How many {what} does it handle in the shift?"
    )


@situation
def helpers(r: Rng) -> str:
    workers, days, k = r.randint(2, 6), r.randint(4, 12), r.choice([2, 3])
    job = r.choice(["paint a bridge", "pick an orchard", "tile a swimming pool", "dig a ditch", "repair a stone wall"])
    return (
        f"It takes {count(workers)} workers {days * k} days to {job}. If all of them work at the same pace, how "
        "many days would "
        f"{count(workers * k)} workers need?"
    )


@situation
def typing(r: Rng) -> str:
    p, q = two_people(r)
    v, w, t = 5 * r.randint(8, 14), 5 * r.randint(5, 7), r.randint(6, 20)
    return (
        f"{p.name} types {v} words a minute and {q.name} types {w} words a minute. They split a manuscript "
        "between them "
        f"and both type for {t} minutes. How many words have they typed together?"
    )


@situation
def reading(r: Rng) -> str:
    p, first, k, rest = person(r), r.randint(12, 40), r.choice([2, 3]), r.randint(20, 120)
    return (
        f"{p.name} is reading a novel of {first + first * k + rest} pages. On Monday {p.he} read {first} pages "
        "and on "
        f"Tuesday {times(k)} as many. How many pages are left to read?"
    )


@situation
def reading_goal(r: Rng) -> str:
    p, per, days, done = person(r), r.randint(8, 25), r.randint(4, 14), r.randint(20, 80)
    return (
        f"A library book has {done + per * days} pages and is due in {days} days. {p.name} has read {done} "
        "pages. How many pages "
        f"a day must {p.he} read to finish it in time?"
    )


@situation
def knitting(r: Rng) -> str:
    p, per, nights, more = person(r), r.randint(6, 15), r.randint(5, 12), r.randint(2, 5)
    item = r.choice(["scarf", "blanket", "shawl"])
    return (
        f"{p.name} knits {per} rows of a {item} every evening. After {nights} evenings {p.he} finds a mistake "
        "and unravels "
        f"{more * per // 2} rows. How many rows does the {item} have then?"
    )


@situation
def tank_filling(r: Rng) -> str:
    into, out, minutes = r.randint(9, 25), r.randint(2, 8), r.randint(10, 45)
    what = r.choice(["rain barrel", "water tank", "bathtub", "fish pond"])
    return (
        f"A tap pours {into} litres a minute into a {what} that holds {(into - out) * minutes} litres, while "
        f"{out} litres a minute "
        f"leak out at the bottom. How many minutes does it take until the {what} is full?"
    )


@situation
def water_use(r: Rng) -> str:
    people, shower, length, save = r.randint(2, 6), r.randint(8, 12), r.randint(6, 12), r.randint(2, 4)
    return (
        f"A shower uses {shower} litres of water a minute. Each of the {count(people)} members of a family "
        "showers for "
        f"{length} minutes a day. How many litres would they save in a week if every shower were {count(save)} "
        "minutes shorter?"
    )


@situation
def candle(r: Rng) -> str:
    per, hours, left = r.randint(2, 4), r.randint(3, 7), r.randint(4, 15)
    return (
        f"A candle is {per * hours + left} cm tall and burns down {per} cm every hour. How tall is it after "
        f"{count(hours)} hours?"
    )


@situation
def growth(r: Rng) -> str:
    start, per, weeks = r.randint(5, 30), r.randint(2, 9), r.randint(3, 10)
    plant = r.choice(["sunflower", "bean plant", "tomato plant", "young willow", "hop vine"])
    return (
        f"{a(plant).capitalize()} was {start} cm tall when it was planted and grew {per} cm every week. "
        f"After how many weeks was it {start + per * weeks} cm tall?"
    )


@situation
def doses(r: Rng) -> str:
    dose, per_day, days = r.choice([5, 10, 15]), r.randint(2, 4), r.randint(5, 14)
    who = r.choice(["A patient", "A child with a cough", "An old dog", "A young horse"])
    return (
        f"{who} has to take {dose} ml of a medicine {count(per_day)} times a day. How many days does a bottle of "
        f"{dose * per_day * days} ml last?"
    )


@situation
def deliveries(r: Rng) -> str:
    one, two = two_people(r)
    n, extra, days = r.randint(15, 40), r.randint(3, 10), r.randint(3, 6)
    what = r.choice(["parcels", "newspapers", "crates of milk", "hot meals"])
    return (
        f"{one.name} delivers {n} {what} a day and {two.name} delivers {extra} fewer. How many {what} do they "
        "deliver "
        f"together in {count(days)} days?"
    )


# Ages, measures, averages


@situation
def ages_ahead(r: Rng) -> str:
    p, age, k, years = person(r), r.randint(7, 12), r.choice([3, 4, 5]), r.randint(3, 15)
    parent = r.choice(["mother", "father", "aunt", "uncle", "piano teacher"])
    return (
        f"{p.name} is {age} years old. {p.his.capitalize()} {parent} is {times(k)} as old as {p.he} is. "
        f"How old will {p.his} {parent} be in {years} years?"
    )


@situation
def ages_back(r: Rng) -> str:
    p, q = two_people(r)
    small, k, ago = r.randint(4, 11), r.choice([2, 3]), r.randint(2, 6)
    return (
        f"{count(ago).capitalize()} years ago {p.name} was {times(k)} as old as {q.name}. {q.name} is "
        f"{small + ago} years old now. "
        f"How old is {p.name} today?"
    )


@situation
def fence_cost(r: Rng) -> str:
    p, length, width, price = person(r), r.randint(8, 40), r.randint(5, 25), r.randint(3, 12)
    what = r.choice(["vegetable garden", "paddock", "playground", "chicken run"])
    return (
        f"{p.name} puts a fence around a rectangular {what} that is {length} metres long and {width} metres wide. "
        f"One metre of fence costs ${price}. How much does the whole fence cost?"
    )


@situation
def garden_area(r: Rng) -> str:
    length, width, side = r.randint(12, 30), r.randint(8, 20), r.randint(2, 5)
    thing = r.choice(["pond", "flower bed", "sandpit", "shed"])
    return (
        f"A lawn is {length} m long and {width} m wide. In its middle there is a square {thing} with sides of "
        f"{side} m. "
        f"How many square metres of grass are there?"
    )


@situation
def box_volume(r: Rng) -> str:
    x, y, z, side = r.randint(3, 8), r.randint(3, 8), r.randint(2, 6), r.choice([5, 10])
    return (
        f"A wooden chest measures {x * side} cm by {y * side} cm by {z * side} cm on the inside. "
        f"How many cubes with an edge of {side} cm fit into it?"
    )


@situation
def triangle(r: Rng) -> str:
    one, two = r.randint(35, 80), r.randint(30, 70)
    thing = r.choice(["sail", "flag", "roof gable", "corner shelf"])
    return (
        f"A triangular {thing} has one angle of {one} degrees and another of {two} degrees. "
        f"How many degrees does the third angle measure?"
    )


@situation
def painting_walls(r: Rng) -> str:
    p, walls, length, height, per = person(r), r.randint(2, 4), 4 * r.randint(1, 3), r.choice([3, 4]), r.choice([2, 4])
    return (
        f"{p.name} wants to paint {count(walls)} walls, each {length} m long and {height} m high. One litre of "
        "paint covers "
        f"{per} square metres. How many litres does {p.he} need for one coat?"
    )


@situation
def ribbon(r: Rng) -> str:
    p, piece, n, rest = person(r), r.randint(12, 45), r.randint(4, 9), r.randint(5, 11)
    what = r.choice(["ribbon", "rope", "copper wire", "string"])
    return (
        f"From a {what if what != 'copper wire' else 'roll of copper wire'} of {piece * n + rest} cm {p.name} "
        f"cuts {n} pieces "
        f"of {piece} cm. How many centimetres are left over?"
    )


@situation
def crate_weight(r: Rng) -> str:
    n, each, empty = r.randint(8, 30), r.randint(2, 6), r.randint(3, 9)
    what = r.choice(["melons", "bags of sugar", "tins of oil", "cheeses"])
    return (
        f"A crate with {n} {what} weighs {n * each + empty} kg. The empty crate weighs {empty} kg. "
        f"How much does each of the {what} weigh?"
    )


@situation
def temperature(r: Rng) -> str:
    start, up, down = r.randint(2, 15), r.randint(4, 12), r.randint(3, 10)
    return (
        f"At six in the morning it was {start} degrees. By noon the temperature had risen by {up} degrees, and "
        "by midnight it "
        f"had dropped by {up + down} degrees. What was the temperature at midnight?"
    )


@situation
def average_needed(r: Rng) -> str:
    p, mean = person(r), r.randint(70, 80)
    scores = [mean + r.randint(-6, 8) for _ in range(3)]
    listed = f"{scores[0]}, {scores[1]} and {scores[2]}"
    return (
        f"{p.name} scored {listed} points in {p.his} first three tests. How many points does {p.he} need in the "
        f"fourth test to reach an average of {mean}?"
    )


@situation
def average_of_days(r: Rng) -> str:
    n, mean = r.choice([4, 5]), r.randint(20, 60)
    values = [mean + r.randint(-9, 9) for _ in range(n - 1)]
    values.append(n * mean - sum(values))
    what = r.choice(["visitors came to a small museum", "loaves were sold at a bakery", "calls came in at a help desk"])
    return (
        f"On {count(n)} days in a row, {', '.join(str(v) for v in values[:-1])} and {values[-1]} {what}. "
        f"What is the average per day?"
    )


@situation
def stairs(r: Rng) -> str:
    p, floors, steps, trips = person(r), r.randint(3, 9), r.randint(14, 22), r.randint(2, 5)
    return (
        f"{p.name} lives on floor {floors + 1}, and there are {steps} steps between one floor and the next. "
        f"How many steps does {p.he} climb if {p.he} goes up from the first floor {count(trips)} times?"
    )


@situation
def seedlings(r: Rng) -> str:
    p, rows, per, part = person(r), 3 * r.randint(2, 6), 4 * r.randint(2, 6), r.choice([3, 4])
    what = r.choice(["lettuces", "leeks", "cabbages", "strawberry plants"])
    name = {3: "A third", 4: "A quarter"}[part]
    return (
        f"{p.name} plants {rows} rows of {what} with {per} plants in each row. {name} of them are eaten by snails. "
        f"How many {what} are left?"
    )


@situation
def orchard(r: Rng) -> str:
    p, trees, per, basket = person(r), r.randint(4, 12), 20 * r.randint(3, 8), r.choice([10, 20])
    fruit, tree = r.choice([("apples", "apple"), ("pears", "pear"), ("plums", "plum"), ("oranges", "orange")])
    return (
        f"There are {trees} {tree} trees in an orchard, and each bears about {per} {fruit}. {p.name} packs the "
        f"{fruit} "
        f"in baskets of {basket}. How many baskets can {p.he} fill?"
    )


@situation
def photos(r: Rng) -> str:
    p, n, part, more = person(r), 5 * r.randint(12, 40), r.choice([20, 40, 60]), r.randint(15, 60)
    return (
        f"{p.name} has {n} photos on {p.his} camera. {p.He} deletes {part}% of them and then takes {more} new "
        "ones on "
        f"{r.choice(['a walk in the hills', 'the last day of the holiday', 'a trip to the harbour'])}. How many "
        "photos are on "
        f"the camera now?"
    )


@situation
def train_seats(r: Rng) -> str:
    cars, seats, percent = r.randint(4, 9), 20 * r.randint(3, 5), r.choice([40, 55, 60, 75, 85])
    return (
        f"A train has {count(cars)} carriages with {seats} seats each. On a weekday morning {percent}% of the "
        "seats are taken. "
        f"How many seats are free?"
    )


@situation
def milk(r: Rng) -> str:
    p, cows, per, bottle = person(r), r.randint(5, 15), 2 * r.randint(8, 13), 2
    price = r.randint(2, 4)
    return (
        f"{p.name} has {cows} cows that give {per} litres of milk a day each. {p.He} fills the milk into "
        f"{bottle}-litre bottles and "
        f"sells every bottle for ${price}. How much money does {p.he} make a day?"
    )


@situation
def puzzle(r: Rng) -> str:
    p, size, percent = person(r), r.choice([500, 1000, 1500, 2000]), r.choice([10, 20, 30, 40])
    more = 10 * r.randint(4, 15)
    return (
        f"{p.name} works on a jigsaw puzzle of {size} pieces. On the first evening {p.he} places {percent}% of "
        "the pieces, and "
        f"on the second evening {more} pieces. How many pieces are still to be placed?"
    )


@situation
def recycling(r: Rng) -> str:
    one, two = two_people(r)
    x, k, y = r.randint(8, 25), r.choice([2, 3]), r.randint(4, 7)
    what = r.choice(["old newspapers", "glass bottles", "scrap metal"])
    return (
        f"{one.name}'s class collects {x} kg of {what}. {two.name}'s class collects {y} kg less than {times(k)} "
        f"that amount. How many kilograms do the two classes collect altogether?"
    )


@situation
def pet_weights(r: Rng) -> str:
    cat, k, extra = r.randint(3, 6), r.choice([3, 4, 5]), r.randint(2, 7)
    p = person(r)
    return (
        f"{p.name}'s cat weighs {cat} kg. {p.his.capitalize()} dog weighs {times(k)} as much as the cat, and "
        "the goat weighs "
        f"{extra} kg more than the dog. How much do the three animals weigh together?"
    )


@situation
def mixed_fractions(r: Rng) -> str:
    p = person(r)
    one, two = r.choice(
        [(Fraction(1, 2), Fraction(1, 3)), (Fraction(1, 4), Fraction(1, 3)), (Fraction(2, 5), Fraction(1, 3))]
    )
    unit = (one.denominator * two.denominator) * r.randint(2, 9)
    what, verb = r.choice([("dollars", "spends"), ("metres of cloth", "uses"), ("kilograms of clay", "uses")])
    had = f"${unit}" if what == "dollars" else f"{unit} {what}"
    return (
        f"{p.name} has {had}. {p.He} {verb} {one} of it on Monday and {two} of what remains on Tuesday. "
        f"How {'much money' if what == 'dollars' else f'many {what}'} does {p.he} have at the end?"
    )


@situation
def ferry(r: Rng) -> str:
    cars, trips, rest = r.randint(12, 30), r.randint(3, 8), r.randint(1, 9)
    return (
        f"A ferry takes {cars} cars on each crossing. {cars * trips + rest} cars are waiting in the harbour. "
        f"How many crossings are needed, and how many cars are on the last one?"
    )


@situation
def number_riddle(r: Rng) -> str:
    p, n, k, add = person(r), r.randint(3, 20), r.randint(2, 6), r.randint(3, 25)
    ask = r.choice(["What was the number?", f"Which number did {p.he} think of?"])
    return f"{p.name} thinks of a number, multiplies it by {k} and adds {add}. The result is {n * k + add}. {ask}"
