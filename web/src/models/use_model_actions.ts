/** Load, unload and reset of a model, with the row shown at once when the gateway has answered. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { type AdminModel, type AdminModels, adminKeys, loadModel, resetModel, unloadModel } from "./admin_models";
import type { LoadValue } from "./load_fields";

export type ModelAction =
  | { kind: "load"; values: Record<string, LoadValue>; restart: boolean }
  | { kind: "unload" }
  | { kind: "reset" };

/** Returns the mutation that carries out an action on a model. */
export function useModelAction(model: string) {
  const client = useClient();
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (action: ModelAction): Promise<AdminModel> => {
      switch (action.kind) {
        case "load":
          return loadModel(client, model, action.values, action.restart);
        case "unload":
          return unloadModel(client, model);
        case "reset":
          return resetModel(client, model);
      }
    },
    onSuccess: (row) => {
      queries.setQueryData<AdminModels>(adminKeys.models, (listing) =>
        listing === undefined
          ? listing
          : { ...listing, models: listing.models.map((each) => (each.name === row.name ? row : each)) },
      );
    },
    onSettled: () =>
      Promise.all([
        queries.invalidateQueries({ queryKey: ["admin"] }),
        queries.invalidateQueries({ queryKey: ["models"] }),
      ]),
  });
}
