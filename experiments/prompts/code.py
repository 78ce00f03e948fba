"""Python tasks for the bank: a function's head with docstring and example, or a wish with assertions.

Every task carries the function it asks for, so that examples and assertions are computed and therefore true.
"""

import random
import string
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from math import comb, factorial, gcd, isqrt, lcm, prod

Rng = random.Random
STUBS = 2  # of each kind, for each task
WISHES = 2


@dataclass(frozen=True)
class Task:
    """One function: its possible names, its signature, what it does (from the verb on), and how."""

    names: str
    args: str
    returns: str
    does: tuple[str, ...]
    solve: Callable[..., object]
    inputs: Callable[[Rng], tuple[object, ...]]


def prompts(rng: Rng) -> Iterator[str]:
    """Function heads and wishes for every task, in turn."""
    for round_ in range(max(STUBS, WISHES)):
        for task in TASKS:
            if round_ < STUBS:
                yield stub(task, rng)
            if round_ < WISHES:
                yield wish(task, rng)


def example(task: Task, name: str, rng: Rng) -> tuple[str, str]:
    """A call and its value, both as source text."""
    args = task.inputs(rng)
    return f"{name}({', '.join(map(repr, args))})", repr(task.solve(*args))


def examples(task: Task, name: str, wanted: int, rng: Rng) -> dict[str, str]:
    """`wanted` different calls with their values; fewer for a task with few possible inputs."""
    found: dict[str, str] = {}
    for _ in range(4 * wanted):
        if len(found) < wanted:
            call, value = example(task, name, rng)
            found[call] = value
    return found


def stub(task: Task, rng: Rng) -> str:
    name, does = rng.choice(task.names.split()), rng.choice(task.does)
    shown = "".join(
        f"    >>> {call}\n    {value}\n" for call, value in examples(task, name, rng.choice([1, 2]), rng).items()
    )
    sentence = f"{does[0].upper()}{does[1:]}."
    opening = rng.choice([f'"""\n    {sentence}\n', f'"""{sentence}\n\n', f'"""\n    {sentence}\n\n'])
    return f'def {name}({task.args}) -> {task.returns}:\n    {opening}{shown}    """\n'


def wish(task: Task, rng: Rng) -> str:
    name, does = rng.choice(task.names.split()), rng.choice(task.does)
    kind = rng.choice(["function", "function", "python function"])
    tests = "".join(f"assert {call} == {value}\n" for call, value in examples(task, name, 3, rng).items())
    return f"Write a {kind} to {does}. Your code should pass these tests:\n{tests}"


# Inputs

FRUIT = ["apple", "plum", "cherry", "fig", "melon", "quince", "lime", "pear", "grape", "olive"]
PLAIN = ["river", "Stone", "cloud", "level", "paper", "Window", "radar", "garden", "ship", "noon", "lantern", "Copper"]
SENTENCES = [
    "the tide comes in at noon", "Seven geese crossed the road", "we met near the old mill", "rain again and again",
    "a map of the northern coast", "Please close the gate", "the cat saw the other cat", "bread and salt on the table",
    "no train stops here today", "Every lamp in the street was lit",
]  # fmt: skip


def ints(r: Rng, low: int = 0, high: int = 20, least: int = 3, most: int = 6) -> list[int]:
    return [r.randint(low, high) for _ in range(r.randint(least, most))]


def some(r: Rng, items: list[str], least: int = 3, most: int = 5) -> list[str]:
    return r.sample(items, r.randint(least, most))


def matrix(r: Rng, rows: int, columns: int) -> list[list[int]]:
    return [[r.randint(0, 9) for _ in range(columns)] for _ in range(rows)]


def digits(n: int) -> list[int]:
    return [int(d) for d in str(abs(n))]


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, isqrt(n) + 1))


ROMAN = {
    1000: "M", 900: "CM", 500: "D", 400: "CD", 100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X",
    9: "IX", 5: "V", 4: "IV", 1: "I",
}  # fmt: skip


def roman(n: int) -> str:
    out = ""
    for value, letters in ROMAN.items():
        out += letters * (n // value)
        n %= value
    return out


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def longest_run(xs: list[int]) -> int:
    return max((len(list(group)) for _, group in groupby(xs)), default=0)


def balanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth < 0:
            return False
    return depth == 0


def caesar(text: str, shift: int) -> str:
    low = string.ascii_lowercase
    return text.translate(str.maketrans(low, low[shift:] + low[:shift]))


def fibonacci(n: int) -> list[int]:
    out = [0, 1]
    while len(out) < n:
        out.append(out[-1] + out[-2])
    return out[:n]


def in_base(n: int, base: int) -> str:
    out = ""
    while n:
        n, digit = divmod(n, base)
        out = str(digit) + out
    return out or "0"


def common_prefix(words: list[str]) -> str:
    first, last = min(words), max(words)
    same = next((i for i, (x, y) in enumerate(zip(first, last, strict=False)) if x != y), min(len(first), len(last)))
    return first[:same]


def climb(n: int) -> int:
    one, two = 1, 1
    for _ in range(n):
        one, two = two, one + two
    return one


def best_slice(xs: list[int]) -> int:
    best = ending_here = xs[0]
    for x in xs[1:]:
        ending_here = max(ending_here + x, x)
        best = max(best, ending_here)
    return best


def factors(n: int) -> list[int]:
    for d in range(2, n + 1):
        if n % d == 0:
            return [d, *factors(n // d)]
    return []


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out


def multiples_of(k: int) -> Task:
    return Task(
        f"count_multiples_of_{k} multiples_of_{k}",
        "numbers: list[int]",
        "int",
        (
            f"count the numbers in a list that are divisible by {k}",
            f"find how many items of a list are multiples of {k}",
        ),
        lambda xs: sum(x % k == 0 for x in xs),
        lambda r: (ints(r, 1, 40),),
    )


def scaled_by(k: int, verb: str) -> Task:
    return Task(
        f"{verb}_all {verb}_values",
        "values: list[int]",
        "list[int]",
        (f"{verb} every number of a list", f"return a new list in which each number is multiplied by {k}"),
        lambda xs: [k * x for x in xs],
        lambda r: (ints(r, -9, 20),),
    )


def longer_than(k: int) -> Task:
    return Task(
        f"words_over_{k} longer_than_{k}",
        "words: list[str]",
        "list[str]",
        (
            f"keep only the words with more than {k} letters",
            f"filter a list of words for those longer than {k} letters",
        ),
        lambda words: [w for w in words if len(w) > k],
        lambda r: (some(r, FRUIT + PLAIN, 4, 6),),
    )


NUMBERS, WORDS, TEXT, N = "numbers: list[int]", "words: list[str]", "text: str", "n: int"

TASKS = (
    # lists of numbers
    Task("sum_of_evens add_even_numbers", NUMBERS, "int",
         ("add up the even numbers of a list", "find the sum of all even items in a list"),
         lambda xs: sum(x for x in xs if x % 2 == 0), lambda r: (ints(r, 0, 30),)),
    Task("count_odd number_of_odds", NUMBERS, "int",
         ("count the odd numbers in a list", "find how many numbers of a list are odd"),
         lambda xs: sum(x % 2 for x in xs), lambda r: (ints(r, 0, 30),)),
    Task("second_largest runner_up", NUMBERS, "int",
         ("find the second largest distinct value in a list", "return the largest value below the maximum of a list"),
         lambda xs: sorted(set(xs))[-2], lambda r: (r.sample(range(40), r.randint(3, 6)),)),
    Task("value_range spread", NUMBERS, "int",
         ("find the difference between the largest and the smallest number", "return the range of a list of numbers"),
         lambda xs: max(xs) - min(xs), lambda r: (ints(r, -20, 40),)),
    Task("running_total cumulative_sum", NUMBERS, "list[int]",
         ("return the running totals of a list", "compute the cumulative sums of a list of numbers"),
         lambda xs: list(accumulate(xs)), lambda r: (ints(r, -5, 12),)),
    Task("differences gaps_between", NUMBERS, "list[int]",
         ("return the differences between neighbouring numbers", "subtract each number of a list from the next one"),
         lambda xs: [b - a for a, b in pairwise(xs)], lambda r: (ints(r, 0, 40, 4, 6),)),
    Task("is_sorted in_ascending_order", NUMBERS, "bool",
         ("check whether a list is sorted in ascending order", "decide if no number is smaller than the one before it"),
         lambda xs: xs == sorted(xs),
         lambda r: (r.choice([ints(r), sorted(ints(r))]),)),
    Task("rotate_left shift_left", "items: list[int], k: int", "list[int]",
         ("rotate a list to the left by k places", "move the first k items of a list to its end"),
         lambda xs, k: xs[k:] + xs[:k], lambda r: (ints(r, 0, 9, 5, 6), r.randint(1, 4))),
    Task("without_duplicates unique_in_order", "items: list[int]", "list[int]",
         ("remove duplicates from a list and keep the order",
          "return each item of a list once, in order of appearance"),
         lambda xs: list(dict.fromkeys(xs)), lambda r: (ints(r, 1, 6, 5, 8),)),
    Task("most_frequent most_common_item", "items: list[int]", "int",
         ("find the item that occurs most often, the smaller one in case of a tie",
          "return the most frequent number of a list, preferring the smallest"),
         lambda xs: min(xs, key=lambda x: (-xs.count(x), x)), lambda r: (ints(r, 1, 5, 6, 9),)),
    Task("common_items shared_values", "first: list[int], second: list[int]", "list[int]",
         ("return the sorted values that two lists have in common", "find the common elements of two lists, sorted"),
         lambda xs, ys: sorted(set(xs) & set(ys)), lambda r: (ints(r, 1, 9, 4, 6), ints(r, 1, 9, 4, 6))),
    Task("only_in_first missing_from_second", "first: list[int], second: list[int]", "list[int]",
         ("list the items of the first list that the second one lacks",
          "return the values found only in the first list"),
         lambda xs, ys: [x for x in xs if x not in ys], lambda r: (ints(r, 1, 9, 4, 6), ints(r, 1, 9, 3, 5))),
    Task("interleave alternate_items", "first: list[int], second: list[int]", "list[int]",
         ("interleave two lists of the same length", "take items alternately from two lists of equal length"),
         lambda xs, ys: [z for pair in zip(xs, ys, strict=True) for z in pair],
         lambda r: (ints(r, 0, 9, 3, 3), ints(r, 10, 19, 3, 3))),
    Task("in_chunks split_every", "items: list[int], size: int", "list[list[int]]",
         ("split a list into chunks of a given size",
          "cut a list into pieces of the given size, the last may be shorter"),
         lambda xs, k: [xs[i : i + k] for i in range(0, len(xs), k)], lambda r: (ints(r, 0, 9, 4, 7), r.randint(2, 3))),
    Task("flatten flatten_once", "lists: list[list[int]]", "list[int]",
         ("flatten a list of lists", "join the inner lists of a list into a single list"),
         lambda xs: [x for inner in xs for x in inner],
         lambda r: ([ints(r, 0, 9, 1, 3) for _ in range(r.randint(2, 3))],)),
    Task("move_zeros zeros_last", NUMBERS, "list[int]",
         ("move all zeros to the end of a list",
          "put the zeros of a list last without changing the other items' order"),
         lambda xs: [x for x in xs if x] + [x for x in xs if not x], lambda r: (ints(r, 0, 3, 5, 7),)),
    Task("index_of_max position_of_largest", NUMBERS, "int",
         ("find the index of the largest number", "return the first position of the maximum of a list"),
         lambda xs: xs.index(max(xs)), lambda r: (ints(r, 0, 50),)),
    Task("mean_of average", NUMBERS, "float",
         ("compute the arithmetic mean of a list of numbers", "return the average of the given numbers"),
         lambda xs: sum(xs) / len(xs), lambda r: (ints(r, 0, 20, 4, 4),)),
    Task("median_of middle_value", NUMBERS, "int",
         ("find the median of a list with an odd number of items", "return the middle value of an odd-length list"),
         lambda xs: sorted(xs)[len(xs) // 2], lambda r: (ints(r, 0, 50, *r.choice([(3, 3), (5, 5), (7, 7)])),)),
    Task("product_of multiply_all", NUMBERS, "int",
         ("multiply all numbers of a list", "return the product of a list of numbers"),
         prod, lambda r: (ints(r, 1, 8, 3, 5),)),
    Task("sum_of_squares add_squares", NUMBERS, "int",
         ("compute the sum of the squares of a list of numbers", "square every number and add up the results"),
         lambda xs: sum(x * x for x in xs), lambda r: (ints(r, -6, 9),)),
    Task("positives_only drop_negatives", NUMBERS, "list[int]",
         ("remove all negative numbers from a list", "keep the numbers of a list that are zero or greater"),
         lambda xs: [x for x in xs if x >= 0], lambda r: (ints(r, -9, 9, 5, 7),)),
    Task("count_sign_changes sign_changes", NUMBERS, "int",
         ("count how often the sign changes between neighbours of a list without zeros",),
         lambda xs: sum(a * b < 0 for a, b in pairwise(xs)),
         lambda r: ([r.choice([-1, 1]) * r.randint(1, 9) for _ in range(r.randint(4, 6))],)),
    Task("longest_run longest_streak", "items: list[int]", "int",
         ("find the length of the longest run of equal items",
          "return how many equal items stand next to each other at most"),
         longest_run, lambda r: (ints(r, 1, 3, 6, 9),)),
    Task("best_slice max_subarray_sum", NUMBERS, "int",
         ("find the largest sum of a contiguous slice that is not empty",
          "return the maximum sum of any run of neighbours"),
         best_slice, lambda r: (ints(r, -6, 8, 5, 7),)),
    Task("has_pair_with_sum two_add_up_to", "numbers: list[int], target: int", "bool",
         ("check whether two different positions of a list add up to a target",
          "tell if some pair of numbers has a given sum"),
         lambda xs, t: any(xs[i] + xs[j] == t for i in range(len(xs)) for j in range(i)),
         lambda r: (ints(r, 1, 12, 4, 6), r.randint(8, 18))),
    Task("clamp_all limit_values", "numbers: list[int], low: int, high: int", "list[int]",
         ("limit every number of a list to the interval from low to high",),
         lambda xs, a, b: [min(max(x, a), b) for x in xs],
         lambda r: (ints(r, -5, 25, 4, 6), r.randint(0, 4), r.randint(10, 15))),
    Task("local_peaks peaks", NUMBERS, "list[int]",
         ("return the numbers that are greater than both of their neighbours", "list the local maxima inside a list"),
         lambda xs: [b for a, b, c in zip(xs, xs[1:], xs[2:], strict=False) if a < b > c],
         lambda r: (ints(r, 0, 9, 6, 8),)),
    Task("split_by_parity evens_and_odds", NUMBERS, "tuple[list[int], list[int]]",
         ("separate a list into its even and its odd numbers",
          "return the even numbers and the odd numbers as two lists"),
         lambda xs: ([x for x in xs if x % 2 == 0], [x for x in xs if x % 2]), lambda r: (ints(r, 0, 20, 4, 6),)),
    Task("dot_product inner_product", "first: list[int], second: list[int]", "int",
         ("compute the dot product of two vectors", "multiply two lists item by item and add up the products"),
         lambda xs, ys: sum(x * y for x, y in zip(xs, ys, strict=True)),
         lambda r: (ints(r, -3, 6, 3, 3), ints(r, -3, 6, 3, 3))),
    Task("reverse_in_groups reverse_chunks", "items: list[int], size: int", "list[int]",
         ("reverse a list in groups of the given size", "reverse every block of the given size within a list"),
         lambda xs, k: [x for i in range(0, len(xs), k) for x in xs[i : i + k][::-1]],
         lambda r: (ints(r, 0, 9, 5, 7), r.randint(2, 3))),
    Task("insert_sorted insert_in_order", "numbers: list[int], x: int", "list[int]",
         ("insert a number into a sorted list so that it stays sorted",),
         lambda xs, x: sorted([*xs, x]), lambda r: (sorted(ints(r, 0, 30)), r.randint(0, 30))),
    Task("missing_number find_gap", NUMBERS, "int",
         ("find the one number missing from a list of the numbers 1 to n",
          "return the gap in a shuffled range from 1 to n"),
         lambda xs: (len(xs) + 1) * (len(xs) + 2) // 2 - sum(xs),
         lambda r: (r.sample(range(1, (n := r.randint(5, 7)) + 1), n)[:-1],)),
    Task("rank_of rank_among", "numbers: list[int], x: int", "int",
         ("find the rank of a number, counting from 1 for the largest value of a list",),
         lambda xs, x: 1 + sum(y > x for y in xs),
         lambda r: (xs := r.sample(range(50), r.randint(4, 6)), r.choice(xs))),
    multiples_of(3), multiples_of(4), multiples_of(5), multiples_of(7),
    scaled_by(2, "double"), scaled_by(3, "triple"),
    longer_than(4), longer_than(5),
    # numbers
    Task("digit_sum sum_digits", N, "int",
         ("add up the decimal digits of a number", "find the sum of the digits of a non-negative integer"),
         lambda n: sum(digits(n)), lambda r: (r.randint(10, 99999),)),
    Task("digital_root repeated_digit_sum", N, "int",
         ("add up the digits of a number again and again until one digit is left",),
         lambda n: 1 + (n - 1) % 9, lambda r: (r.randint(10, 99999),)),
    Task("reverse_number reversed_digits", N, "int",
         ("reverse the digits of a number", "return the number written with its digits in reverse order"),
         lambda n: int(str(n)[::-1]), lambda r: (r.randint(12, 99999),)),
    Task("is_palindrome_number reads_same_backwards", N, "bool",
         ("check whether a number is a palindrome", "tell if a number reads the same backwards"),
         lambda n: str(n) == str(n)[::-1], lambda r: (r.choice([r.randint(100, 999), 101 * r.randint(1, 9), 1221]),)),
    Task("count_digits number_of_digits", N, "int",
         ("count the digits of a positive integer", "find how many digits a positive number has"),
         lambda n: len(str(n)), lambda r: (r.randint(1, 10 ** r.randint(1, 7)),)),
    Task("is_prime_number check_prime", N, "bool",
         ("check whether a number is prime", "tell whether an integer has no divisors but one and itself"),
         is_prime, lambda r: (r.randint(2, 200),)),
    Task("primes_below primes_up_to_limit", "limit: int", "list[int]",
         ("list all primes below a limit", "return the prime numbers smaller than the given limit"),
         lambda n: [x for x in range(n) if is_prime(x)], lambda r: (r.randint(5, 40),)),
    Task("divisors_of all_divisors", N, "list[int]",
         ("list all divisors of a number in ascending order", "return every positive divisor of n"),
         lambda n: [d for d in range(1, n + 1) if n % d == 0], lambda r: (r.randint(6, 60),)),
    Task("is_perfect equals_divisor_sum", N, "bool",
         ("check whether a number equals the sum of its proper divisors", "tell if a number is perfect"),
         lambda n: n == sum(d for d in range(1, n) if n % d == 0),
         lambda r: (r.choice([6, 28, 496, r.randint(5, 60)]),)),
    Task("prime_factors factorise", N, "list[int]",
         ("return the prime factors of a number in ascending order, with repetition",),
         factors, lambda r: (r.randint(6, 400),)),
    Task("greatest_common_divisor highest_common_factor", "a: int, b: int", "int",
         ("find the greatest common divisor of two numbers",), gcd,
         lambda r: (6 * r.randint(2, 12), 4 * r.randint(2, 15))),
    Task("least_common_multiple smallest_common_multiple", "a: int, b: int", "int",
         ("find the least common multiple of two positive numbers",), lcm,
         lambda r: (r.randint(2, 20), r.randint(2, 20))),
    Task("first_fibonacci fibonacci_list", N, "list[int]",
         ("return the first n Fibonacci numbers, starting from 0",), fibonacci, lambda r: (r.randint(3, 10),)),
    Task("collatz_steps hailstone_steps", N, "int",
         ("count the Collatz steps from a number down to 1",
          "count how many times a number must be halved, or tripled plus one if odd, to reach 1"),
         collatz, lambda r: (r.randint(3, 30),)),
    Task("to_binary binary_digits", N, "str",
         ("convert a non-negative integer to a string of binary digits", "write a number in base two"),
         lambda n: format(n, "b"), lambda r: (r.randint(2, 200),)),
    Task("to_base digits_in_base", "n: int, base: int", "str",
         ("write a non-negative integer in a base between 2 and 9",), in_base,
         lambda r: (r.randint(10, 400), r.randint(3, 9))),
    Task("count_ones set_bits", N, "int",
         ("count the ones in the binary form of a number", "find how many bits of an integer are set"),
         lambda n: n.bit_count(), lambda r: (r.randint(1, 500),)),
    Task("is_power_of_two power_of_two", N, "bool",
         ("check whether a positive number is a power of two",), lambda n: n & (n - 1) == 0,
         lambda r: (r.choice([2 ** r.randint(0, 10), r.randint(3, 200)]),)),
    Task("integer_root floor_sqrt", N, "int",
         ("find the largest integer whose square does not exceed n", "compute the square root of n, rounded down"),
         isqrt, lambda r: (r.randint(5, 2000),)),
    Task("is_square perfect_square", N, "bool",
         ("check whether a number is the square of an integer",), lambda n: isqrt(n) ** 2 == n,
         lambda r: (r.choice([r.randint(2, 25) ** 2, r.randint(2, 500)]),)),
    Task("factorial_of n_factorial", N, "int",
         ("compute the factorial of a number", "multiply the whole numbers from 1 to n"), factorial,
         lambda r: (r.randint(0, 10),)),
    Task("choose binomial", "n: int, k: int", "int",
         ("count the ways to choose k out of n things", "compute the binomial coefficient of n and k"),
         comb, lambda r: (r.randint(5, 12), r.randint(1, 5))),
    Task("triangle_number sum_up_to", N, "int",
         ("add the whole numbers from 1 to n", "return the n-th triangular number"),
         lambda n: n * (n + 1) // 2, lambda r: (r.randint(2, 100),)),
    Task("stair_ways ways_to_climb", N, "int",
         ("count the ways to climb n steps if one or two steps are taken at a time",), climb,
         lambda r: (r.randint(2, 15),)),
    Task("to_roman roman_numeral", N, "str",
         ("write a positive integer as a Roman numeral",), roman, lambda r: (r.randint(1, 2500),)),
    Task("days_in_month month_length", "year: int, month: int", "int",
         ("return the number of days of a month, leap years considered",),
         lambda y, m: 29 if m == 2 and is_leap(y) else (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[m - 1],
         lambda r: (r.randint(1890, 2030), r.choice([2, 2, r.randint(1, 12)]))),
    Task("is_leap_year leap_year", "year: int", "bool",
         ("check whether a year is a leap year in the Gregorian calendar",), is_leap,
         lambda r: (r.choice([1900, 2000, r.randint(1880, 2100), 4 * r.randint(470, 520)]),)),
    Task("as_clock format_seconds", "seconds: int", "str",
         ("format a number of seconds as hours, minutes and seconds with two digits each",),
         lambda s: f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}", lambda r: (r.randint(30, 40000),)),
    Task("to_fahrenheit celsius_to_fahrenheit", "celsius: float", "float",
         ("convert degrees Celsius to degrees Fahrenheit",), lambda c: c * 9 / 5 + 32,
         lambda r: (5.0 * r.randint(-6, 20),)),
    Task("fewest_coins minimum_coins", "amount: int", "int",
         ("find the smallest number of coins of 1, 5, 10 and 25 cents for an amount",),
         lambda n: n // 25 + n % 25 // 10 + n % 25 % 10 // 5 + n % 5, lambda r: (r.randint(4, 300),)),
    Task("fizz_buzz fizzbuzz_list", N, "list[str]",
         ("list the numbers from 1 to n as strings, with Fizz for multiples of 3, Buzz for 5, and FizzBuzz for both",),
         lambda n: ["Fizz" * (i % 3 == 0) + "Buzz" * (i % 5 == 0) or str(i) for i in range(1, n + 1)],
         lambda r: (r.randint(4, 16),)),
    Task("is_triangle valid_triangle", "a: int, b: int, c: int", "bool",
         ("check whether three lengths can be the sides of a triangle",),
         lambda a, b, c: 2 * max(a, b, c) < a + b + c, lambda r: (r.randint(2, 9), r.randint(2, 9), r.randint(3, 12))),
    Task("manhattan_distance grid_distance", "first: tuple[int, int], second: tuple[int, int]", "int",
         ("compute the Manhattan distance between two points",),
         lambda p, q: abs(p[0] - q[0]) + abs(p[1] - q[1]),
         lambda r: ((r.randint(-5, 9), r.randint(-5, 9)), (r.randint(-5, 9), r.randint(-5, 9)))),
    Task("armstrong_number is_narcissistic", N, "bool",
         ("check whether a three-digit number equals the sum of the cubes of its digits",),
         lambda n: n == sum(d**3 for d in digits(n)), lambda r: (r.choice([153, 370, 371, 407, r.randint(100, 999)]),)),
    # text
    Task("count_vowels number_of_vowels", TEXT, "int",
         ("count the vowels in a text", "find how many letters of a string are vowels"),
         lambda t: sum(c in "aeiou" for c in t.lower()), lambda r: (r.choice(SENTENCES),)),
    Task("remove_vowels without_vowels", TEXT, "str",
         ("remove all vowels from a string", "return a text with its vowels left out"),
         lambda t: "".join(c for c in t if c.lower() not in "aeiou"), lambda r: (r.choice(SENTENCES),)),
    Task("is_palindrome same_backwards", "word: str", "bool",
         ("check whether a word is a palindrome, ignoring case", "tell if a word reads the same in both directions"),
         lambda w: w.lower() == w.lower()[::-1], lambda r: (r.choice([*PLAIN, "Anna", "Kayak", "rotor", "civic"]),)),
    Task("reverse_words words_backwards", TEXT, "str",
         ("reverse the order of the words in a sentence",), lambda t: " ".join(t.split()[::-1]),
         lambda r: (r.choice(SENTENCES),)),
    Task("reverse_each_word mirror_words", TEXT, "str",
         ("reverse every word of a sentence but keep the word order",),
         lambda t: " ".join(w[::-1] for w in t.split()), lambda r: (r.choice(SENTENCES),)),
    Task("longest_word first_longest_word", TEXT, "str",
         ("find the longest word of a sentence, the first one in case of a tie",),
         lambda t: max(t.split(), key=len), lambda r: (r.choice(SENTENCES),)),
    Task("word_lengths lengths_of_words", TEXT, "list[int]",
         ("return the lengths of the words of a sentence", "list how many letters each word of a text has"),
         lambda t: [len(w) for w in t.split()], lambda r: (r.choice(SENTENCES),)),
    Task("count_words how_often", TEXT, "dict[str, int]",
         ("count how often each word occurs in a text, ignoring case",),
         lambda t: dict(Counter(t.lower().split())), lambda r: (r.choice(SENTENCES),)),
    Task("letter_counts count_letters", "word: str", "dict[str, int]",
         ("count how often each letter occurs in a word",
          "return a dictionary from the letters of a word to their number"),
         lambda w: dict(Counter(w)), lambda r: (r.choice(FRUIT + PLAIN),)),
    Task("first_unique_letter first_single", "word: str", "str",
         ("return the first letter that occurs only once in a word, or an empty string",),
         lambda w: next((c for c in w if w.count(c) == 1), ""),
         lambda r: (r.choice([*FRUIT, *PLAIN, "noon", "deed"]),)),
    Task("are_anagrams same_letters", "first: str, second: str", "bool",
         ("check whether two words are anagrams of each other",), lambda a, b: sorted(a) == sorted(b),
         lambda r: r.choice([("listen", "silent"), ("stone", "notes"), ("lemon", "melon"), ("plum", "lamp"),
                             ("spare", "pears"), ("river", "rover"), ("night", "thing"), ("dusty", "study")])),
    Task("capitalize_words title_words", TEXT, "str",
         ("capitalize the first letter of each word", "make every word of a sentence begin with a capital letter"),
         lambda t: " ".join(w[:1].upper() + w[1:] for w in t.split()), lambda r: (r.choice(SENTENCES),)),
    Task("initials_of make_acronym", TEXT, "str",
         ("return the initials of the words of a text in upper case", "build an acronym from a phrase"),
         lambda t: "".join(w[0].upper() for w in t.split()), lambda r: (r.choice(SENTENCES),)),
    Task("to_snake_case snake_case", "name: str", "str",
         ("convert a camel case name to snake case",),
         lambda s: "".join(f"_{c.lower()}" if c.isupper() else c for c in s).lstrip("_"),
         lambda r: (r.choice(["firstName", "maxRetryCount", "OrderTotal", "isOpen", "lastSeenAt", "UserId"]),)),
    Task("to_camel_case camel_case", "name: str", "str",
         ("convert a snake case name to camel case",),
         lambda s: s.split("_")[0] + "".join(w.capitalize() for w in s.split("_")[1:]),
         lambda r: (r.choice(["first_name", "max_retry_count", "order_total", "is_open", "last_seen_at", "row"]),)),
    Task("compress run_length_encode", TEXT, "str",
         ("replace each run of equal letters by the letter and the length of the run",),
         lambda t: "".join(f"{c}{len(list(g))}" for c, g in groupby(t)),
         lambda r: ("".join(c * r.randint(1, 4) for c in r.sample("abcxyz", r.randint(2, 4))),)),
    Task("squeeze collapse_repeats", TEXT, "str",
         ("reduce each run of the same letter to a single one",), lambda t: "".join(c for c, _ in groupby(t)),
         lambda r: ("".join(c * r.randint(1, 3) for c in r.choice(FRUIT)),)),
    Task("is_balanced parentheses_match", TEXT, "bool",
         ("check whether the parentheses of a text are balanced", "tell if every parenthesis has its partner"),
         balanced, lambda r: (r.choice(["(a + b) * c", "((x)", "f(g(x), y)", ")(", "(()())", "a) + (b",
            "2 * (3 + (4 - 1))"]),)),
    Task("caesar_shift shift_letters", "text: str, shift: int", "str",
         ("shift every lower-case letter of a text by the given number of places in the alphabet",),
         caesar, lambda r: (r.choice(SENTENCES).lower(), r.randint(1, 12))),
    Task("count_substring occurrences_of", "text: str, part: str", "int",
         ("count how often a part occurs in a text, overlaps included",),
         lambda t, p: sum(t.startswith(p, i) for i in range(len(t))),
         lambda r: r.choice([("banana", "ana"), ("aaaa", "aa"), ("the other thin thread", "th"), ("mississippi", "ss"),
                             ("no noon", "no"), ("abcabc", "cb")])),
    Task("common_prefix shared_start", WORDS, "str",
         ("find the longest common prefix of a list of words", "return the longest start that all given words share"),
         common_prefix,
         lambda r: (r.choice([["stone", "store", "storm"], ["plum", "plumber", "plume"], ["river", "rival", "rib"],
                              ["lamp", "candle"], ["interval", "internal", "interest"],
                              ["sea", "season", "search"]]),)),
    Task("sort_by_length shortest_first", WORDS, "list[str]",
         ("sort words by their length and keep the order of equally long ones",),
         lambda ws: sorted(ws, key=len), lambda r: (some(r, FRUIT + PLAIN),)),
    Task("sort_ignoring_case alphabetical", WORDS, "list[str]",
         ("sort words alphabetically without regard to case",), lambda ws: sorted(ws, key=str.lower),
         lambda r: (some(r, FRUIT + PLAIN),)),
    Task("group_by_length words_by_length", WORDS, "dict[int, list[str]]",
         ("group words by their length", "return a dictionary from word length to the words of that length"),
         lambda ws: {n: [w for w in ws if len(w) == n] for n in dict.fromkeys(map(len, ws))},
         lambda r: (some(r, FRUIT + PLAIN),)),
    Task("group_by_initial words_by_first_letter", WORDS, "dict[str, list[str]]",
         ("group words by their first letter",),
         lambda ws: {c: [w for w in ws if w[0] == c] for c in dict.fromkeys(w[0] for w in ws)},
         lambda r: (some(r, [*FRUIT, "pea", "leek", "millet", "chard", "onion"], 4, 6),)),
    Task("join_with_and enumerate_words", WORDS, "str",
         ("join words with commas and put 'and' before the last one",),
         lambda ws: ", ".join(ws[:-1]) + " and " + ws[-1], lambda r: (some(r, FRUIT, 2, 4),)),
    Task("swap_case_of invert_case", TEXT, "str",
         ("turn upper-case letters into lower case and the other way round",), str.swapcase,
         lambda r: (r.choice(SENTENCES),)),
    Task("digits_in extract_digits", TEXT, "list[int]",
         ("return all digits that occur in a text as numbers", "collect the single digits of a string in order"),
         lambda t: [int(c) for c in t if c.isdigit()],
         lambda r: (r.choice([f"room {r.randint(100, 399)}", f"a{r.randint(1, 9)}b{r.randint(10, 99)}",
            "no digits here"]),)),
    Task("mask_all_but_last hide_start", "text: str, visible: int", "str",
         ("replace all but the last few characters of a text by stars",),
         lambda t, k: "*" * (len(t) - k) + t[-k:], lambda r: (str(r.randint(10**6, 10**9)), r.randint(2, 4))),
    Task("centered_line pad_both_sides", "text: str, width: int", "str",
         ("center a text in a line of dots of the given width",), lambda t, w: t.center(w, "."),
         lambda r: (r.choice(FRUIT), r.choice([10, 12, 14]))),
    Task("hamming_distance differing_places", "first: str, second: str", "int",
         ("count the positions at which two strings of equal length differ",),
         lambda a, b: sum(x != y for x, y in zip(a, b, strict=True)),
         lambda r: r.choice([("karma", "karts"), ("10110", "11100"), ("river", "rover"), ("stone", "stone"),
           ("plum", "lump"),
                             ("0001", "1110")])),
    Task("contains_all_letters is_pangram", TEXT, "bool",
         ("check whether a text contains every letter of the alphabet",),
         lambda t: set(string.ascii_lowercase) <= set(t.lower()),
         lambda r: (r.choice([*SENTENCES, "Pack my box with five dozen liquor jugs",
            "How vexingly quick daft zebras jump"]),)),
    # dictionaries, pairs, matrices
    Task("invert_dict swap_keys_and_values", "mapping: dict[str, int]", "dict[int, str]",
         ("swap the keys and values of a dictionary with distinct values",),
         lambda d: {v: k for k, v in d.items()},
         lambda r: (dict(zip(some(r, FRUIT, 2, 4), r.sample(range(1, 30), 4), strict=False)),)),
    Task("key_of_max best_key", "scores: dict[str, int]", "str",
         ("return the key with the highest value", "find the name with the best score in a dictionary"),
         lambda d: max(d, key=d.__getitem__),
         lambda r: (dict(zip(some(r, ["Ana", "Ben", "Cleo", "Dev", "Eli"], 3, 4), r.sample(range(10, 99), 4),
            strict=False)),)),
    Task("merge_counts add_dicts", "first: dict[str, int], second: dict[str, int]", "dict[str, int]",
         ("merge two dictionaries and add the values of common keys",),
         lambda a, b: {k: a.get(k, 0) + b.get(k, 0) for k in [*a, *(k for k in b if k not in a)]},
         lambda r: ({k: r.randint(1, 9) for k in r.sample("abcd", 2)},
          {k: r.randint(1, 9) for k in r.sample("abcd", 2)})),
    Task("total_price basket_total", "prices: dict[str, int], basket: list[str]", "int",
         ("add up the prices of the goods in a basket", "compute what a basket costs, given a dictionary of prices"),
         lambda d, b: sum(d[x] for x in b),
         lambda r: (d := {x: r.randint(1, 12) for x in some(r, FRUIT, 2, 3)},
          [r.choice(list(d)) for _ in range(r.randint(2, 4))])),
    Task("filter_by_value keep_at_least", "scores: dict[str, int], limit: int", "dict[str, int]",
         ("keep the entries of a dictionary whose value is at least a limit",),
         lambda d, k: {x: v for x, v in d.items() if v >= k},
         lambda r: ({x: r.randint(1, 50) for x in some(r, FRUIT, 3, 4)}, r.randint(15, 35))),
    Task("sort_by_second order_pairs", "pairs: list[tuple[str, int]]", "list[tuple[str, int]]",
         ("sort a list of pairs by their second item",), lambda ps: sorted(ps, key=lambda p: p[1]),
         lambda r: (list(zip(some(r, FRUIT, 3, 3), r.sample(range(1, 40), 3), strict=True)),)),
    Task("transpose rows_to_columns", "matrix: list[list[int]]", "list[list[int]]",
         ("transpose a matrix", "turn the rows of a matrix into columns"),
         lambda m: [list(row) for row in zip(*m, strict=True)],
         lambda r: (matrix(r, r.randint(2, 3), r.randint(2, 3)),)),
    Task("row_sums sums_of_rows", "matrix: list[list[int]]", "list[int]",
         ("return the sum of each row of a matrix",), lambda m: [sum(row) for row in m],
         lambda r: (matrix(r, r.randint(2, 3), r.randint(2, 3)),)),
    Task("column_max largest_per_column", "matrix: list[list[int]]", "list[int]",
         ("return the largest number of each column of a matrix",), lambda m: [max(c) for c in zip(*m, strict=True)],
         lambda r: (matrix(r, r.randint(2, 3), r.randint(2, 3)),)),
    Task("trace_of diagonal_sum", "matrix: list[list[int]]", "int",
         ("add up the main diagonal of a square matrix",), lambda m: sum(m[i][i] for i in range(len(m))),
         lambda r: (matrix(r, n := r.randint(2, 3), n),)),
    Task("rotate_right quarter_turn", "matrix: list[list[int]]", "list[list[int]]",
         ("rotate a matrix clockwise by 90 degrees",), lambda m: [list(c) for c in zip(*m[::-1], strict=True)],
         lambda r: (matrix(r, r.randint(2, 3), r.randint(2, 3)),)),
    Task("merge_intervals join_overlaps", "intervals: list[tuple[int, int]]", "list[tuple[int, int]]",
         ("merge overlapping intervals and return them sorted",), merged,
         lambda r: ([(s := r.randint(0, 15), s + r.randint(1, 5)) for _ in range(r.randint(3, 4))],)),
    Task("pascal_row binomial_row", N, "list[int]",
         ("return the n-th row of Pascal's triangle, counting from 0",), lambda n: [comb(n, k) for k in range(n + 1)],
         lambda r: (r.randint(0, 8),)),
    Task("multiplication_table times_table", N, "list[list[int]]",
         ("build the multiplication table of the numbers from 1 to n",),
         lambda n: [[i * j for j in range(1, n + 1)] for i in range(1, n + 1)], lambda r: (r.randint(1, 5),)),
    Task("binary_search find_sorted", "numbers: list[int], x: int", "int",
         ("find the index of a number in a sorted list by binary search, or -1 if it is missing",),
         lambda xs, x: xs.index(x) if x in xs else -1,
         lambda r: (xs := sorted(r.sample(range(30), r.randint(4, 6))), r.choice([*xs, 31]))),
)  # fmt: skip
