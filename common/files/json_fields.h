// Reads the fields of a JSON object from a file that may be invalid; every error names the file and
// the field.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "file.h"

namespace ultrascale {

// The fields of a JSON object. A field that is null counts as absent, as in transformers.
class Fields {
public:
    Fields(const nlohmann::json& object, std::string where)
        : object_(object), where_(std::move(where)) {}

    const nlohmann::json* find(const char* field) const {
        understood_.insert(field);
        return peek(field);
    }
    const nlohmann::json* peek(const char* field) const {  // does not count as understood
        auto found = object_.find(field);
        return found == object_.end() || found->is_null() ? nullptr : &*found;
    }
    int64_t integer(const char* field) const {
        const nlohmann::json* value = find(field);
        if (!value) user_error("{}: lacks the field \"{}\"", where_, field);
        if (!value->is_number_integer())
            user_error("{}: {} = {} is not an integer", where_, field, printable(value->dump()));
        if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(INT64_MAX))
            user_error("{}: {} = {} is too large", where_, field, printable(value->dump()));
        return value->get<int64_t>();
    }
    int64_t integer(const char* field, int64_t otherwise) const {
        return find(field) ? integer(field) : otherwise;
    }
    double number(const char* field) const {
        const nlohmann::json* value = find(field);
        if (!value) user_error("{}: lacks the field \"{}\"", where_, field);
        if (!value->is_number())
            user_error("{}: {} = {} is not a number", where_, field, printable(value->dump()));
        return value->get<double>();
    }
    double number(const char* field, double otherwise) const {
        return find(field) ? number(field) : otherwise;
    }
    bool flag(const char* field) const {  // absent: false
        const nlohmann::json* value = find(field);
        if (value && !value->is_boolean())
            user_error("{}: {} = {} is not true or false", where_, field, printable(value->dump()));
        return value && value->get<bool>();
    }
    // Throws unless the field is absent or equal to the only supported value.
    void only(const char* field, const nlohmann::json& supported) const {
        const nlohmann::json* value = find(field);
        if (value && *value != supported)
            user_error("{}: {} = {} is not supported; {} is", where_, field,
                       printable(value->dump()), supported.dump());
    }
    const std::string& where() const { return where_; }
    // Marks these fields as understood. Fields that were asked for are understood anyway.
    void understands(std::initializer_list<const char*> fields) const {
        understood_.insert(fields.begin(), fields.end());
    }
    // The fields that are not understood, except for those that are null.
    std::vector<std::string> not_understood() const {
        std::vector<std::string> names;
        for (const auto& [name, value] : object_.items())
            if (!value.is_null() && !understood_.contains(name)) names.push_back(name);
        return names;
    }

private:
    mutable std::set<std::string> understood_;
    const nlohmann::json& object_;
    std::string where_;
};

}  // namespace ultrascale
