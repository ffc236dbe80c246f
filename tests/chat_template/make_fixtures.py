#!/usr/bin/env python3
"""Writes fixtures/conversations.json and fixtures/snippets.json: what jinja2 makes of the templates in
fixtures/templates and of many small ones, set up as `transformers` sets it up.

Needs `pip install jinja2==3.1.6`. Deterministic.
"""
import datetime
import hashlib
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent / "fixtures"
NOW = datetime.datetime(2024, 7, 9, 8, 5, 3)


class Generation(jinja2.ext.Extension):
    """The block `generation`, which marks the assistant's text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


def render(source, variables):
    try:
        return {"text": environment().from_string(source).render(**variables)}
    except jinja2.exceptions.TemplateSyntaxError:
        return {"error": "syntax"}
    except Exception:  # of any kind: the template is at fault
        return {"error": "render"}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather, \"as it is\", in <b>one</b> place.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Zürich, 東京, ..."},
                "days": {"type": "integer", "minimum": 1, "default": 1.0},
                "hours": {"type": "array", "items": {"type": "number"}},
                "unit": {"type": ["string", "null"], "enum": ["celsius", "fahrenheit", None]},
            },
            "required": ["place"],
        },
        "return": {"type": "object"},
    },
}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def conversations():
    user = lambda text: {"role": "user", "content": text}
    assistant = lambda text: {"role": "assistant", "content": text}
    system = lambda text: {"role": "system", "content": text}
    call = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdefghi", "type": "function",
         "function": {"name": "get_weather", "arguments": {"place": "Zürich \"Süd\"", "days": 2, "x": [1.5, True, None]}}}]}
    answer = {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "{\"sky\": \"blue\"}"}
    text_call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "{\"a\": 1}"}}]}
    long_talk = [system(" Be brief. \n"), user("Hello\n"), assistant("  Hi! "), user("日本語で 🎉")]
    thinking = [user("1+1?"), assistant("<think>\nOne and one.\n</think>\n\n2"), user("Sure?"),
                {"role": "assistant", "reasoning_content": "Yes.", "content": "Sure."}]
    parts = [{"role": "user", "content": [{"type": "text", "text": " What is this? "}, {"type": "image"}]}]
    yield "one", dict(messages=[user("Hi")], add_generation_prompt=True)
    yield "long", dict(messages=long_talk, add_generation_prompt=True)
    yield "no prompt", dict(messages=long_talk[1:3], add_generation_prompt=False)
    yield "tools", dict(messages=[system("S."), user("Weather?")], tools=[WEATHER, ADD], add_generation_prompt=True)
    yield "tool use", dict(messages=[user("Weather?"), call, answer, assistant("Blue."), user("Thanks")],
                           tools=[WEATHER], add_generation_prompt=True)
    yield "text call", dict(messages=[user("Add"), text_call, answer], tools=[ADD], add_generation_prompt=True)
    yield "two results", dict(messages=[user("Weather?"), call, answer, answer], add_generation_prompt=True)
    yield "thinking", dict(messages=thinking, add_generation_prompt=True, enable_thinking=False)
    yield "thinking on", dict(messages=thinking, add_generation_prompt=True, enable_thinking=True)
    yield "parts", dict(messages=parts, add_generation_prompt=True)
    yield "two users", dict(messages=[user("a"), user("b")], add_generation_prompt=False)
    yield "empty", dict(messages=[], add_generation_prompt=True)
    yield "date", dict(messages=[user("Hi")], tools=None, date_string="1 Jan 2020", add_generation_prompt=False)


SNIPPETS = r'''
{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 100000000000000000000.0 }} {{ 1.5e300 * 1e10 }} {{ 123456789012345.6 }}
{{ true }} {{ None }} {{ not true }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) }} {{ () }}
{{ 'it''s' }} {{ "a" "b" }} {{ 'x' ~ 1 ~ none ~ true ~ 1.5 }} {{ 'ab' * 3 }} {{ [0] * 2 }} {{ 'tab\tnew\nA\x41\u00e9\101' }}
{{ [1, 'a', "it's", none, true, 1.5, {'k': 'v'}, (1, 2)] }} {{ {'a': [1], 2: 'b'} }} {{ ['\n\t\\', 'é', '"', "'\""] }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 in [1, 2, 3] }} {{ 'b' in 'abc' }} {{ 'k' in {'k': 1} }} {{ 4 not in [1] }}
{{ 'yes' if x is defined else 'no' }} {{ 'yes' if false }}| {{ (1 if false) is undefined }} {{ x or 'other' }} {{ 0 and y }}
{{ undefined_name }}|{{ undefined_name | default('d') }} {{ '' | default('d') }}|{{ '' | default('d', true) }} {{ none | d('x') }}
{{ 'Hello World'[1:4] }} {{ 'Hello'[::-1] }} {{ 'Hello'[-3:] }} {{ '日本語'[1] }} {{ [1, 2, 3, 4][::2] }} {{ [1, 2, 3][-1] }} {{ 'abc'[5] }}| {{ 'abcdef'[4:1:-1] }}
{{ '  a b  '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ ' a '.lstrip() }}| {{ ' a '.rstrip() }}| {{ 'aXbXc'.split('X') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'Abc'.upper() }} {{ 'ABC'.lower() }} {{ 'hello wORLD'.title() }} {{ 'hello wORLD'.capitalize() }} {{ 'a-b a'.replace('a', 'X', 1) }}
{{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.find('x') }} {{ '日本語'.find('語') }} {{ 'aaa'.count('a') }} {{ 'abc'.index('b') }} {{ ', '.join(['a', 'b']) }}
{{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '5'.zfill(3) }} {{ '-5'.zfill(4) }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '*') }}
{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ ''.isdigit() }}
{{ '{} and {}'.format(1, 'x') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{n}{{}}'.format(n=3) }} {{ '%s is %d' % ('a', 3) }} {{ '%.2f%%' % 1.234 }} {{ '%5d|%-5d|%05d' % (1, 2, 3) }} {{ '%s' % 'x' }} {{ '%r' % 'x' }}
{{ ' x ' | trim }}| {{ 'xay' | trim('xy') }} {{ 'abc' | upper }} {{ 'ABC' | lower }} {{ 'hello wide-world (now)' | title }} {{ 'aBC' | capitalize }} {{ 'aab' | replace('a', 'b') }} {{ 'aab' | replace('a', 'b', 1) }}
{{ 'abc' | length }} {{ '日本' | length }} {{ [1, 2] | count }} {{ {'a': 1} | length }} {{ none_such | length }} {{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ [] | first }}| {{ 'abc' | last }}
{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ [1, 2] | sort(reverse=true) }} {{ [{'n': 2}, {'n': 1}] | sort(attribute='n') }} {{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }}
{{ [1, 2, 3] | reverse | list }} {{ 'abc' | reverse }} {{ [1, 1, 2, 'a', 'A'] | unique | list }} {{ [1, 2, 3] | sum }} {{ [{'n': 1}, {'n': 4}] | sum(attribute='n') }} {{ [3, 1] | min }} {{ ['a', 'B'] | max }}
{{ ['a', 'b'] | join(', ') }} {{ [1, none] | join }} {{ [{'n': 'x'}, {'n': 'y'}] | join('-', attribute='n') }} {{ ['a', 'b'] | map('upper') | list }} {{ [{'f': {'n': 1}}] | map(attribute='f.n') | list }} {{ [{}] | map(attribute='n', default='-') | list }} {{ ['aXa'] | map('replace', 'a', 'b') | list }}
{{ [1, 2, 3, 4] | select('even') | list }} {{ [1, 2, 3] | reject('odd') | list }} {{ [0, 1, '', 'a'] | select | list }} {{ [{'r': 'u'}, {'r': 'a'}] | selectattr('r', 'equalto', 'u') | list }} {{ [{'r': 1}, {}] | selectattr('r', 'defined') | list }} {{ [{'r': 1}, {'r': 0}] | rejectattr('r') | list }}
{{ '5' | int }} {{ '5.7' | int }} {{ 'x' | int }} {{ 'x' | int(-1) }} {{ 5.9 | int }} {{ 'ff' | int(base=16) }} {{ '1.5' | float }} {{ 3 | float }} {{ 'x' | float }} {{ -3 | abs }} {{ -3.5 | abs }} {{ 2.5 | round }} {{ 3.567 | round(2) }} {{ 2.1 | round(method='ceil') }} {{ 1.25 | round(1) }} {{ 2 | round }}
{{ [1, {'a': 'é"<', 'b': none}] | tojson }} {{ {'a': 1} | tojson(indent=2) }} {{ 'é' | tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }} {{ 1.0 | tojson }} {{ '🎉\u0001\n' | tojson(true) }} {{ [] | tojson(indent=2) }} {{ {'a': [1, {}]} | tojson(indent=1) }}
{{ {'a': 1, 'b': 2}.items() | list }} {{ {'a': 1} | items | list }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 7) }} {{ {'a': {'b': 3}}.a.b }} {{ {'items': 5}['items'] }} {{ {'k': 1}['x'] }}|
{{ 'a\nb\n\nc' | indent }} {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent(2, blank=true) }} {{ 'a\nb' | indent('> ') }} {{ '<a> & "b"' | escape }} {{ '<a>' | safe }} {{ 'one two, three' | wordcount }} {{ '%s-%s' | format('a', 1) }} {{ 5 | string ~ 'x' }} {{ 'abc' | list }}
{{ 1 is number }} {{ true is number }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ 'a' is sequence }} {{ 'a' is iterable }} {{ 5 is iterable }} {{ none is none }} {{ x is none }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ true is true }} {{ 1 is true }} {{ x is undefined }}
{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 1 is in [1] }} {{ 'a' is not in 'bc' }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ 1 is sameas 1 }} {{ range is callable }} {{ 1 is equalto 1 and 2 is gt 1 }}
{% for i in range(3) %}{{ i }}{{ loop.index }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{% if not loop.last %},{% endif %}{% endfor %}
{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %} {% for x in [] %}x{% else %}none{% endfor %} {% for c in 'añb' %}{{ c }}.{% endfor %} {% for k in {'p': 1} %}{{ k }}{% endfor %} {% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for i in range(10) if i is odd %}{{ i }}{% if i > 5 %}{% break %}{% endif %}{% endfor %} {% for i in range(5) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %} {% for i in [1, 2, 3] %}{{ loop.previtem }}-{{ loop.nextitem }} {% endfor %} {% for i in [1, 2] %}{% for j in [1] %}{{ loop.depth }}{{ loop.cycle('a', 'b') }}{% endfor %}{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }} {% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set (c, d) = [3, 4] %}{{ c }}{{ d }} {% if true %}{% set e = 5 %}{% endif %}{{ e }}
{% set t %}<b>{{ 1 }}</b>{% endset %}{{ t }} {% set t | upper %}abc{% endset %}{{ t }} {% filter upper %}abc{{ 'd' }}{% endfilter %} {% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}|
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }} {{ m(1, c='y') }} {{ m(1, 2, 3, 4, z=5) }} {{ m() }} {% macro outer() %}[{{ caller() }}]{% endmacro %}{% call outer() %}in{% endcall %} {% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% macro greet(name) %}Hi {{ name }}{% endmacro %}{{ greet(*['a']) }} {{ greet(**{'name': 'b'}) }} {{ greet(name='c') | upper }} {{ [1, 2, 3,] }} {{ {'a': 1,} }} {{ dict(a=1, b='x') }} {{ namespace(a=1).a }}
  {% if true %}  
 a
  {% endif %}  
b {%- if true -%}  c  {%- endif +%}
 d
x {#- comment -#} y {# kept # #} z
  {# line comment #}
after
{% raw %}{{ x }} {% if %}{% endraw %} {%- raw -%}  {# c #}  {%- endraw -%} end
{{- ' a' -}}   {{+ 'b' if false else '' }}
{%+ if true %} kept {% endif %}
{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ strftime_now('%A %B %-d') }}
{{ 'a' + 1 }}
{{ undefined_name.attribute }}
{{ undefined_name + 'x' }}
{{ none + 'x' }}
{{ undefined_function() }}
{{ 'abc'.no_method() }}
{{ raise_exception('no') }}
{{ 1 / 0 }}
{{ [1].append(2) }}
{{ 5 | no_filter }}
{{ 5 is no_test }}
{{ 'x' | tojson(unknown }}
{% if %}x{% endif %}
{% for x in %}{% endfor %}
{% if true %}never closed
{% unknown_tag %}
{{ 'unclosed }}
{{ (1 + 2 }}
{% endif %}
{{ 1 + }}
{{ a b }}
{% set x = undefined_name %}{{ x is defined }} {{ undefined_name == undefined_other }} {{ undefined_name is none }} {% for i in undefined_name %}{% endfor %}done {{ 'a' in undefined_name }}
{{ {'a': 1}.b is defined }} {{ {'a': 1}['b'] is defined }} {{ {'content': none}.content is none }} {{ 'x'.missing is defined }} {{ [1][3] is defined }}
{{ x.y.z if x is defined else 'safe' }} {{ not x is defined }} {{ not 1 == 2 }} {{ -1 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -2 | abs }} {{ 1 - 1 | abs }} {{ 'a' ~ 'b' | upper }} {{ 1 + 2 ~ 3 }} {{ 10 - 2 - 3 }} {{ 2 * 3 % 4 }}
{{ 'a' if false else 'b' if false else 'c' }} {{ ('x' if true) }} {{ [1, 2] + [3] }} {{ (1, 2) + (3,) }} {{ 'abc' == 'abc' }} {{ [1] == [1.0] }} {{ {'a': 1} == {'a': 1} }} {{ none == false }} {{ '' == none }} {{ 0 == false }}
{{ range(2, 8, 3) | list }} {{ range(3, 0, -1) | list }} {{ range(0) | list }} {{ 'é'.upper() }} {{ 'É'.lower() }} {{ 'straße'.upper() }} {{ 'ÇA'.capitalize() }}
'''


def snippets():
    """Each line is a template, but lines that belong together by their blocks."""
    lines = SNIPPETS.strip("\n").split("\n")
    at = 0
    while at < len(lines):
        if lines[at].startswith("  {% if true %}  "):
            yield "\n".join(lines[at : at + 5]) + "\n"
            at += 5
        elif lines[at].startswith("x {#-"):
            yield "\n".join(lines[at : at + 3]) + "\n\n"
            at += 3
        else:
            yield lines[at]
            at += 1


def write(name, value):
    (HERE / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main():
    talks = dict(conversations())
    for talk in talks.values():
        talk.setdefault("tools", None)
        talk.update(bos_token="<s>", eos_token="</s>")
    results = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        results[path.stem] = {name: render(source, talk) for name, talk in talks.items()}
    # The template of Qwen 3 isn't part of the repository: of what it makes, digests are recorded.
    shared = HERE.parents[3] / "shared/tokenizers/qwen3/chat_template.jinja"
    digests = {}
    for name, talk in talks.items():
        result = render(shared.read_text(encoding="utf-8"), talk)
        digests[name] = {"sha256": hashlib.sha256(result["text"].encode()).hexdigest()} if "text" in result else result
    write("qwen3.json", digests)
    write("conversations.json", {"now": NOW.strftime("%Y-%m-%d %H:%M:%S"), "conversations": talks, "results": results})
    write("snippets.json", [{"source": source, **render(source, {})} for source in snippets()])


if __name__ == "__main__":
    main()
