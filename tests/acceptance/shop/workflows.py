from __future__ import annotations

from typing import Any, TypedDict

from django import forms

from durableflow import (
    AsyncStep,
    EventTimeout,
    Retention,
    Retries,
    Rollback,
    Schedule,
    Step,
    Undo,
    Workflow,
    WorkflowEvent,
)
from shop import services


class RefundForm(forms.Form):
    amount = forms.DecimalField()


class CartParams(TypedDict):
    cart_id: int


# 1. checkout with approval ------------------------------------------------------------------------------------------------
class Checkout(Workflow[CartParams, dict[str, str]]):
    """Charge a cart and mail its invoice."""

    class Meta:
        name = "checkout"
        step_retries = Retries(limit=5, delay=10, max_delay="10 minutes")
        step_timeout = "2 minutes"
        max_duration = "30 days"
        retention = Retention(success="30 days", error="90 days")

    def run(self, event: WorkflowEvent[CartParams], step: Step) -> dict[str, str]:
        cart = step.do("load cart", services.load_cart, event.params["cart_id"])
        if cart["total"] > 500:
            decision = step.wait_for_approval(
                "manager approval",
                title=f"Order over 500: {cart['total']}",
                groups=["managers"],
                form=RefundForm,
                allow_requester=False,
                timeout="3 days",
                notify=services.mail_managers,
            )
            if not decision:
                return {"state": "rejected", "by": decision.by, "why": decision.comment}
        charge = step.do(
            "charge card",
            services.charge_card,
            cart["total"],
            retries=Retries(limit=10, delay=60, give_up_on=(services.CardDeclined,)),
        )
        step.set_progress({"state": "charged"})
        step.do("mail invoice", services.mail_invoice, cart, charge)
        return {"state": "paid", "charge": charge}


# 2. nightly export ----------------------------------------------------------------------------------------------------------
class NightlyExport(Workflow[None, str]):
    class Meta:
        name = "nightly-export"
        schedules = [Schedule(cron="0 2 * * *", timezone="Europe/Berlin", overlap="skip")]
        max_concurrency = 1

    def run(self, event: WorkflowEvent[None], step: Step) -> str:
        day = (event.scheduled_for or event.timestamp).date()
        tables = step.do("list tables", services.list_tables)
        keys = step.map("export table", services.export_table, tables, concurrency=4, timeout="1 hour", retries=2)
        return step.do("write manifest", services.write_manifest, str(day), keys)


# 3. saga ---------------------------------------------------------------------------------------------------------------------
def cancel_flight(undo: Undo[str]) -> None:
    # A failed or interrupted booking may still have gone through: look it up by its key.
    services.cancel("flight", undo.output or undo.context.idempotency_key)


class Trip(Workflow[dict[str, Any], list[str]]):
    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> list[str]:
        flight = step.do("book flight", services.book, "flight", rollback=cancel_flight)
        hotel = step.do(
            "book hotel",
            services.book,
            "hotel",
            rollback=Rollback(lambda undo: services.cancel("hotel", undo.output or ""), retries=20, timeout=30),
        )
        step.do("pay", services.pay, [flight, hotel], retries=0)
        return [flight, hotel]


# 4. fan-out of 500: steps in this instance, or children over all workers ------------------------------------------------
class PageParams(TypedDict):
    page: int


class RenderPage(Workflow[PageParams, str]):
    def run(self, event: WorkflowEvent[PageParams], step: Step) -> str:
        return step.do("render", services.render, event.params["page"])


class Book(Workflow[dict[str, int], int]):
    def run(self, event: WorkflowEvent[dict[str, int]], step: Step) -> int:
        sizes = step.map("measure", services.measure, range(500), concurrency=32)
        jobs: list[PageParams] = [{"page": n} for n in range(500)]
        keys = step.run_workflows("render pages", RenderPage, jobs, concurrency=50)
        cover, index = step.gather(
            "cover and index", lambda: self.cover(step), lambda: step.do("index", services.index, keys)
        )
        return sum(sizes) + len(cover) + index

    def cover(self, step: Step) -> str:
        draft = step.do("draft", services.render, 0)
        step.wait_for_approval("cover ok", title="Cover")
        return draft


# 5. webhook-driven wait ------------------------------------------------------------------------------------------------------
class Settlement(Workflow[dict[str, str], str]):
    def run(self, event: WorkflowEvent[dict[str, str]], step: Step) -> str:
        step.do("create intent", services.create_intent, event.params["order"])
        try:
            got = step.wait_for_event("payment outcome", type=["payment_settled", "payment_failed"], timeout="2 days")
        except EventTimeout:
            return "abandoned"
        return "paid" if got.type == "payment_settled" else "failed"


# 6. agent loop, async ---------------------------------------------------------------------------------------------------------
class Agent(Workflow[dict[str, Any], str]):
    async def run(self, event: WorkflowEvent[dict[str, Any]], step: AsyncStep) -> str:
        messages: list[dict[str, Any]] = list(event.params["messages"])
        for turn in range(50):
            reply = await step.do("think", services.ask_model, messages, timeout="5 minutes")
            messages.append(reply)
            if "tool" not in reply:
                return str(reply["text"])
            if reply["tool"] in services.DANGEROUS:
                ok = await step.wait_for_approval(
                    "tool approval", title=f"Run {reply['tool']}?", context=reply, groups=["agents"]
                )
                if not ok:
                    messages.append({"role": "tool", "content": f"refused: {ok.comment}"})
                    continue
            messages.append(await step.do("tool", services.call_tool, reply["tool"], reply["args"], retries=2))
        step.continue_as_new({"messages": messages[-20:]})
