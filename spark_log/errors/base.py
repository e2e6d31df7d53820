"""The three base classes of all errors."""


class SparkLogError(Exception):
    """Root of every error that spark-log raises on purpose.

    The docstring of each class says when it is raised and, after "Remedy:", what to do.
    """

    retriable = False


class RetriableError(SparkLogError):
    """Base of the errors after which the same call may succeed later.

    Remedy: repeat the call with a pause between attempts. Clients, Spark jobs and the command line already repeat it
    for a while before they raise the error.
    """

    retriable = True


class FatalError(SparkLogError):
    """Base of the errors that the same call raises again until something else is changed.

    Remedy: do what the error says; do not repeat the call as it is.
    """
