"""Builds a job's command line: groups of options -> one typer command -> the job's arguments."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields
from pkgutil import resolve_name
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from spark_log.spark.jobs.failures import guarded
from spark_log.spark.jobs.options.arguments import explain_missing_cluster, usage_error

JOBS_FOLDER = "$(spark-log path jobs)"

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Options that are shown together in --help.

    `options` is a dataclass whose fields are annotated with typer.Option or typer.Argument. The name of an option is
    `prefix` and the name of its field. The options in `required` must be given even if their fields have a default.
    """

    options: type
    title: str | None = None
    prefix: str = ""
    required: tuple[str, ...] = ()

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Return the parameters of a typer command for these options, by the names of the fields."""
        hints = get_type_hints(self.options, include_extras=True)
        parameters = {}
        for field in fields(self.options):
            kind, info = get_args(hints[field.name])
            info = copy(info)
            info.rich_help_panel = self.title
            default = inspect.Parameter.empty
            if field.default is not MISSING and field.name not in self.required:
                default = field.default
            parameters[field.name] = inspect.Parameter(
                self.prefix.replace("-", "_") + field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, info],
            )
        return parameters


@dataclass(frozen=True)
class OneOf:
    """Options of which at most one may be given, and exactly one if `required`.

    An option on the command line replaces the others in the file of --config.
    """

    names: tuple[str, ...]
    required: bool = False

    def apply(self, context: typer.Context, values: dict[str, Any]) -> None:
        """Set replaced options to None in `values`. Raises a usage error for too many or too few options."""
        given = [name for name in self.names if values[name] is not None]
        typed = [name for name in given if _source(context, name) == "COMMANDLINE"]
        for name in given:
            if typed and name not in typed:
                values[name] = None
        options = [option_name(name) for name in typed or given]
        if len(options) > 1:
            raise usage_error(options[1], f"not allowed with {options[0]}")
        if self.required and not options:
            raise usage_error(" or ".join(map(option_name, self.names)), "one is needed")


@dataclass(frozen=True)
class Job(Generic[T]):
    """The command line of a job.

    `build` makes the job's arguments from one instance of each group's dataclass, in order. It raises usage errors.
    """

    name: str
    about: str
    examples: str
    groups: tuple[Group, ...]
    build: Callable[..., T]
    one_of: tuple[OneOf, ...] = ()
    started_by: str = "spark-submit"

    @property
    def app(self) -> typer.Typer:
        """The typer app; its one command returns the arguments."""
        groups = [(group, group.parameters()) for group in self.groups]

        def command(**values: Any) -> T:
            context = values.pop("context")
            for rule in self.one_of:
                rule.apply(context, values)
            return self.build(
                *(
                    group.options(**{name: values[parameter.name] for name, parameter in parameters.items()})
                    for group, parameters in groups
                )
            )

        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        all_parameters = [parameter for _, parameters in groups for parameter in parameters.values()]
        typed: Any = command
        typed.__signature__ = inspect.Signature([context, *all_parameters])
        app = typer.Typer(
            add_completion=False,
            rich_markup_mode="markdown",
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        app.command(self.name, help=self.about, epilog=f"**Examples**\n\n```sh\n{self.examples}\n```")(command)
        return app

    def main(self, run: str) -> Callable[..., int]:
        """Return a function that runs the job and returns its exit code. Without arguments, it takes the process's.

        `run` is `module:function`. It is imported after the arguments are parsed, so that --help needs no PySpark.
        """

        def main(arguments: Sequence[str] | None = None) -> int:
            given = self.parse(arguments)
            return guarded(self.name, lambda: resolve_name(run)(given))

        return main

    def parse(self, arguments: Sequence[str] | None = None) -> T:
        """Parse the job's arguments. Raises SystemExit: 0 after --help, 2 with a message on stderr for wrong usage."""
        command = get_command(self.app)
        program = f"{self.started_by} {JOBS_FOLDER}/{self.name}.py"
        given = list(sys.argv[1:] if arguments is None else arguments)
        try:
            parsed = command.main(given, prog_name=program, standalone_mode=False)
        except TyperException as error:
            print(f"{self.name}: {_message(error)}\nAll arguments: {program} --help", file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        if isinstance(parsed, int):  # the exit code after --help
            raise SystemExit(parsed)
        return parsed  # type: ignore[no-any-return]


def option_name(parameter: str) -> str:
    """Return the option of a parameter, such as `--group-by` for `group_by`."""
    return f"--{parameter.replace('_', '-')}"


def only_with(option: str, given: Mapping[str, object]) -> None:
    """Raise a usage error if a parameter in `given` has a value: these parameters are only allowed with `option`."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise usage_error(option_name(name), f"only with {option}")


def _source(context: typer.Context, name: str) -> str:
    source = context.get_parameter_source(name)
    return "" if source is None else source.name


def _message(error: TyperException) -> str:
    if not isinstance(error, typer.BadParameter):
        return error.format_message()
    explain_missing_cluster(error)
    return f"{error.param_hint}: {error.message}" if isinstance(error.param_hint, str) else error.format_message()
