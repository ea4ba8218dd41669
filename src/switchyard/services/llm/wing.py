"""The wing of language models: what it brings to the system."""

from __future__ import annotations

from switchyard.services.engine.wings import Wing

WING = Wing(
    name="llm",
    libraries=("openai",),
    extra="llm",
    job_modules=("switchyard.services.llm.job_types",),
    source_modules=("switchyard.services.llm.openai_batch_input",),
    periodic_duties="switchyard.services.llm.operations:periodic_duties",
    doctor_steps="switchyard.services.llm.operations:doctor_steps",
    metrics="switchyard.services.llm.operations:samples",
    delayed_jobs="switchyard.services.llm.operations:delayed_jobs",
    cost_estimate="switchyard.services.llm.backfill_costs:estimate",
    short_budget="switchyard.services.llm.backfill_costs:short_budget_note",
)
