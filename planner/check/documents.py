"""The documents of a job, held against how a file batches them."""

from dataclasses import replace

from planner.check.job import Job
from planner.check.layout import Place
from planner.check.values import Values
from planner.errors import InputError
from planner.spec.job import Documents, read_documents


def documents_of(values: Values, job: Job, seq_len: int) -> Documents | None:
    """The documents that the command says, of at most a sequence.

    A mean alone is of documents batched as the file says; a finding where both say otherwise.
    """
    if job.documents is None:
        return None
    stated, text = values.reading.batching, job.documents
    if stated is not None and ":" not in text:
        text = f"{stated.value}:{text}"
    try:
        documents = read_documents(text, seq_len)
    except ValueError as error:
        raise InputError.single("command line", "--documents", str(error)) from None
    if stated is not None and stated.value != documents.batching:
        place = {"documents": Place(key=stated.key, line=stated.line)}
        values.places = replace(values.places, of={**values.places.of, **place})
        message = f"the file's documents are {stated.value}; the job's are {documents.batching}"
        values.add("job.documents", message, "documents")
    return documents
