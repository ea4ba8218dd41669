"""Shared by `jobctl topology users` and `jobctl db users`: an option, and the printed users."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Protocol
from urllib.parse import quote

import typer

from switchyard.cli.base.output import echo, print_json, say

RenewOption = Annotated[
    bool, typer.Option("--renew", help="Also set new passwords for users that already exist.")
]


class _Role(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def purpose(self) -> str: ...


class _CreatedUser(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def role(self) -> _Role: ...

    @property
    def password(self) -> str | None: ...


def print_users(
    made_users: Sequence[_CreatedUser],
    url: Callable[[], str],
    named: Collection[str],
    *,
    as_json: bool,
) -> None:
    """Print each user with its address, which is `url` with the user's login; for a user whose
    password was not made now, print why there is none. `named` are the roles whose passwords come
    from the settings."""
    from switchyard.broker.addresses import with_login

    addresses = {
        each.name: with_login(url(), f"{quote(each.name)}:{each.password}")
        if each.password is not None
        else None
        for each in made_users
    }
    if as_json:
        print_json([{"name": each.name, "url": addresses[each.name]} for each in made_users])
        return
    for each in made_users:
        say(f"{each.name}: {each.role.purpose}")
        if each.role.name in named:
            known = f"its password is that of JOBS_{each.role.name.upper()}_PASSWORD"
        else:
            known = "it keeps its password; --renew gives it another"
        echo(addresses[each.name] or f"  ({known})")
