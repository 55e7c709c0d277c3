"""What jinja2 makes of chat templates, as transformers sets it up: golden data for packages/runtime-native.

    python -m pipeline_native.chat_goldens > packages/runtime-native/test/golden/chat-templates.json
"""

import datetime
import json
import sys

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2024, 3, 5, 7, 8, 9)

MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "**hi** there\nyou"},
    {"role": "assistant", "content": "Hello 👋 ß"},
    {"role": "user", "content": "Bye"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"a": 1, "b": [True, None, 1.5]}}}]
VARIABLES = {"messages": MESSAGES, "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>"}

LOOP = "{% for m in messages %}BODY{% endfor %}"
TEMPLATES = {
    "strip of characters": "{{ '**hi**'.strip('*') }}|{{ 'xxhixx'.lstrip('x') }}|{{ 'xxhixx'.rstrip('x') }}|{{ ' a '.strip() }}|",
    "find and count": "{{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ 'hello'.count('l') }} "
    "{{ '👋ab'.find('b') }} {{ 'abcabc'.find('a', 1) }} {{ 'abc'.index('c') }} {{ 'aaa'.count('') }}",
    "split": "{{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\\nb\\r\\nc\\n'.splitlines() }}",
    "partition": "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }}",
    "prefixes": "{{ 'foobar'.removeprefix('foo') }} {{ 'foobar'.removesuffix('bar') }} {{ 'foobar'.startswith('foo') }}",
    "cases": "{{ 'hELLO wORLD'.capitalize() }} {{ 'hELLO wORLD'.title() }} {{ 'aB'.swapcase() }} {{ 'ß'.casefold() }} {{ 'AB'.isupper() }}",
    "kinds": "{{ '12'.isdigit() }} {{ 'ab1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ ''.isdigit() }}",
    "padding": "{{ 'ab'.ljust(4) }}|{{ 'ab'.rjust(4, '.') }}|{{ 'ab'.center(5, '*') }}|{{ '-4'.zfill(4) }}|",
    "format": "{{ '{} and {}'.format('a', 1) }} {{ '%s=%d' % ('a', 3) }} {{ '%s' | format(none) }} {{ 'ab' * 3 }}",
    "raw": "{% raw %}{{ kept }} {% if %}{% endraw %}!\n  {%- raw -%}  x  {%- endraw -%}  end",
    "raw lines": "a\n  {% raw %}\n  {{ b }}\n  {% endraw %}\nc",
    "with": "{% set a = 1 %}{% with a = 2, b = a + 1 %}{{ a }} {{ b }}{% endwith %} {{ a }}{% with %}{% set c = 5 %}{{ c }}{% endwith %}",
    "loop": LOOP.replace("BODY", "{{ loop.cycle('a', 'b') }}{{ loop.index }}{{ loop.last }} "),
    "strftime": "{{ strftime_now('%A %a %-d %d %B %b %Y %H:%M:%S %I %p %j %y %-m %e %% %F %T') }}",
    "printing": "{{ none }} {{ true }} {{ false }} {{ [1, 'a', none, 1.0] }} {{ {'a': 'it\\'s'} }} {{ (1, 2) }} {{ 1.5 }} {{ 'a' ~ true ~ none }}",
    "undefined": "[{{ nothing }}][{{ nothing | default('d') }}][{{ '' | default('d', true) }}]{% for x in nothing %}x{% else %}none{% endfor %}",
    "tools": "{% if tools is not none %}tools{% else %}no tools{% endif %} {% if documents %}documents{% endif %}",
    "lists": "{{ [3,1,2] | sort | join(',') }} {{ [1,2] | sum }} {{ [1,5] | max }} {{ [4,2] | min }} {{ ['a','A','b'] | unique | list }} "
    "{{ [1,2,3] | first }} {{ 'abc' | last }} {{ 'abc' | reverse }} {{ 'abc' | list }} {{ [1,2,3] | batch(2) | list }} {{ [1] | count }}",
    "selecting": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }} "
    "{{ messages | rejectattr('role', 'in', ['user', 'system']) | list | length }} {{ ['a','B'] | map('upper') | join }} "
    "{{ [1,2,3] | select('gt', 1) | list }} {{ [0,1] | reject | list }}",
    "filters": "{{ ' a ' | trim }}|{{ '--a--' | trim('-') }}|{{ 'ab cd' | title }} {{ 'aBC' | capitalize }} {{ 2.567 | round(1) }} "
    "{{ 2.5 | round }} {{ '<&>' | e }} {{ '👋a' | length }} {{ 'a b' | wordcount }} {{ {'b': 1, 'a': 2} | dictsort }} {{ none | string }}",
    "tests": "{{ 1.5 is float }} {{ 1 is integer }} {{ 'a' is string }} {{ none is none }} {{ x is defined }} {{ messages is iterable }}",
    "characters": "{% for c in 'a👋' %}[{{ c }}]{% endfor %}{% for k in {'x': 1} %}{{ k }}{% endfor %}",
    "line ends": "{% if true %}\r\na\r\n  {% endif %}\r\nb\rc\r\n",
    "blocks": "x\n  {% if true %}\n  y\n  {% endif %}\nz\n{% if true +%}\nkept\n{% endif %}\n    {%+ if true %}w{% endif %}\n{# gone #}\nend\n",
    "filter block": "{% filter upper %}a{{ bos_token }}{% endfilter %}",
    "macro": "{% macro f(a, b='x') %}<{{ a }}{{ b }}>{% endmacro %}{{ f('1') }}{{ f('1', b='2') }}",
    "namespace": "{% set ns = namespace(n=0) %}" + LOOP.replace("BODY", "{% set ns.n = ns.n + 1 %}") + "{{ ns.n }}",
    "json": "{{ messages[0] | tojson }} {{ t | tojson(indent=2) }}",
    "slices": "{{ messages[1:] | length }} {{ messages[-1].content }} {{ 'abc'[::-1] }} {{ messages[0]['role'][:3] }}",
    "break": LOOP.replace("BODY", "{% if loop.index == 2 %}{% continue %}{% endif %}{% if loop.index == 4 %}{% break %}{% endif %}{{ m.role }} "),
}


class Generation(Extension):
    """transformers' AssistantTracker as far as rendering goes: the block is its body."""

    tags = {"generation"}

    def parse(self, parser: object) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def main() -> None:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    environment.globals["strftime_now"] = lambda form: NOW.strftime(form)
    cases = [
        {"name": name, "template": template, "text": environment.from_string(template).render(**VARIABLES, t=TOOLS)}
        for name, template in TEMPLATES.items()
    ]
    document = {"now": NOW.isoformat(), "variables": {**VARIABLES, "t": TOOLS}, "cases": cases}
    json.dump(document, sys.stdout, ensure_ascii=False, indent=1)
    print()


if __name__ == "__main__":
    main()
